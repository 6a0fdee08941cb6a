// What the engine's fuzzer and its mutations share: an input is cells of a rank and a record.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "phantora_wire.h"

constexpr int WORLD = 3;
constexpr size_t CELL = 1 + sizeof(ph_record);
constexpr int REAL[WORLD] = {0, 1, 3};  // ranks of a folded run of four
