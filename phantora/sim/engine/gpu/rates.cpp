#include "gpu/rates.h"

#include <algorithm>

#include "gpu/interference.h"

namespace phe {
namespace {

enum CopyEngine : size_t { TO_DEVICE, TO_HOST, TO_PEER, COPY_ENGINES };

CopyEngine engine_of(const Item &copy) {
  return copy.sub <= PH_COPY_H2D_PAGEABLE ? TO_DEVICE : copy.sub <= PH_COPY_D2H_PAGEABLE ? TO_HOST : TO_PEER;
}

bool served_before(const Item *a, const Item *b) {
  return a->priority != b->priority ? a->priority < b->priority : a->admitted < b->admitted;
}

}  // namespace

void share_device(std::vector<Item *> &running, const Concurrent &concurrent) {
  std::sort(running.begin(), running.end(), served_before);
  double free_share = 1.0;
  bool taken[COPY_ENGINES] = {};
  for (Item *item : running) {
    if (item->type == Item::COPY && item->sub != PH_COPY_D2D) {
      bool &engine = taken[engine_of(*item)];
      item->rate = engine ? 0.0 : 1.0;
      engine = true;
      continue;
    }
    double want = std::max(1e-6f, item->demand), share = std::min(want, free_share);
    item->rate = share < 1e-9 ? 0.0 : share / want;
    free_share = std::max(0.0, free_share - share);
    if (concurrent.nccl)
      item->rate /= Interference::factor(*item, concurrent.earlier);
    else if (concurrent.blocks)
      item->rate /= Interference::factor_of_blocks(*item, concurrent.blocks, concurrent.sms);
  }
}

}  // namespace phe
