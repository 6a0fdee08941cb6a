// What the program has its blocks of memory for (phantora/rank/patches/memory_uses.py).
#pragma once

namespace tracer {

void optimizer_stepped();  // after each step of an optimizer
void allocation_failed();  // while its objects are there: the error lets go of them
void emit_workspaces();    // those that a library got since the last call, now that their blocks are recorded

}  // namespace tracer
