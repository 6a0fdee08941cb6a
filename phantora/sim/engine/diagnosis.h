// What the ranks wait for, in words.
#pragma once
#include "communication.h"

namespace phe {

std::string diagnose(Stage &stage, const Communication &communication);

}  // namespace phe
