// What communication loses to the kernels beside it: they fill memory and caches that it passes through.
#include "state.h"

namespace phc {

// What runs on the GPU has changed while communication is on it. The greediest kernel counts.
void Core::take_pace(Gpu &gpu) {
  double share = 0;
  for (const Stream *s : gpu.busy) {
    const Item &item = s->queue.front();
    if (item.running && item.type != COMM && item.rate > 0) share = std::max(share, item.nature.takes);
  }
  if (gpu.losses.empty()) return gpu.losses.push_back({gpu.now, 0, share});
  const Loss &last = gpu.losses.back();
  if (last.share == share) return;
  gpu.losses.push_back({gpu.now, last.before + last.share * static_cast<double>(gpu.now - last.since), share});
}

// A communication kernel has ended: nobody asks for what was before those that are left arrived.
void Core::forget_losses(Gpu &gpu) {
  if (!gpu.nccl) return gpu.losses.clear();
  int64_t first = NEVER;
  for (const Stream *s : gpu.busy) {
    const Item &item = s->queue.front();
    if (item.running && item.type == COMM) first = std::min(first, item.start);
  }
  while (gpu.losses.size() > 1 && gpu.losses[1].since <= first) gpu.losses.pop_front();
}

// ns that communication on the GPU lost between two moments of which the GPU has reached the later one.
double Core::lost(const Gpu &gpu, int64_t from, int64_t until) {
  auto at = [&](int64_t time) {
    auto after = std::upper_bound(gpu.losses.begin(), gpu.losses.end(), time, [](int64_t t, const Loss &l) { return t < l.since; });
    if (after == gpu.losses.begin()) return 0.0;
    const Loss &l = *std::prev(after);
    return l.before + l.share * static_cast<double>(time - l.since);
  };
  return at(until) - at(from);
}

// A flow has ended as if it had been alone on the GPUs at its ends. What it lost there it has still to do, at the pace
// that it had. Both GPUs are known up to its end, since the links of both are in the component that ended it.
void Core::slow_down(const phn::Ended &e) {
  Activity &a = activities[e.tag];
  const Price &price = *prices[a.price];
  double felt = price.nature.takes, took = static_cast<double>(e.end - a.since), most = 0;
  if (felt > 0 && took > 0)
    for (int rank : {price.flows[e.index].src, price.flows[e.index].dst})
      if (rank >= 0 && ranks[rank].talking) most = std::max(most, felt * lost(*ranks[rank].talking, a.since, e.end));
  a.slowed_end = std::max(a.slowed_end, e.end + static_cast<int64_t>(most / (1 - most / took)));
}

}  // namespace phc
