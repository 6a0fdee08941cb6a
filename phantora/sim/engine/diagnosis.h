// Waits of the ranks, in words.
#pragma once
#include "communication/communication.h"

namespace phe {

std::string diagnose(RankTable &rank_table, const Communication &communication);

}  // namespace phe
