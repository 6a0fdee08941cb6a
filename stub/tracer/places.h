// Places of the program in its Python code.
#pragma once
#include <string>

namespace tracer {

// FILE:LINE of the innermost Python frame outside torch and Triton; "autograd" on a thread that has none. Takes the
// interpreter's lock: no other may be held.
std::string place();
std::string program_lines();  // "LIBRARY.py:LINE, from SCRIPT.py:LINE" of this thread, or what there is of it
void install_sites();  // has collectives say where they are called

}  // namespace tracer
