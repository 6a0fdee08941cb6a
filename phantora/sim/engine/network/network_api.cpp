// The network by itself, for tests and benchmarks.
#include "network/network.h"

#define PHN extern "C" __attribute__((visibility("default")))

namespace {
struct Bench {  // a network with the link lists of its activities
  phn::Network network;
  std::vector<std::vector<std::vector<int32_t>>> links;
  std::vector<phn::Ended> ended;
  std::vector<phn::Busy> busy;
};
}  // namespace

PHN void *phn_open(void) { return new Bench; }
PHN void phn_close(void *bench) { delete static_cast<Bench *>(bench); }
PHN int phn_link(void *bench, double bandwidth) { return static_cast<Bench *>(bench)->network.add_link(bandwidth, 0); }
PHN void phn_change(void *bench, int link, int64_t time, double bandwidth) {
  static_cast<Bench *>(bench)->network.change(link, time, bandwidth);
}
PHN void phn_watch(void *bench) { static_cast<Bench *>(bench)->network.watch_links(); }
// `offsets` has classes + 1 entries into `links`.
PHN int phn_begin(void *bench, int64_t start, int classes, const int32_t *links, const int32_t *offsets,
                  const double *bytes, const double *rates, const int32_t *counts, int64_t tag) {
  Bench &b = *static_cast<Bench *>(bench);
  b.links.emplace_back();
  auto &own = b.links.back();
  own.resize(static_cast<size_t>(classes));
  std::vector<phn::FlowClass> list;
  for (int i = 0; i < classes; ++i) {
    own[i].assign(links + offsets[i], links + offsets[i + 1]);
    list.push_back({-1, -1, own[i].data(), static_cast<int32_t>(own[i].size()), counts[i], bytes[i], rates[i]});
  }
  return b.network.begin(start, list.data(), classes, tag);
}
PHN int64_t phn_earliest(void *bench, int link) {
  phn::FlowClass one{-1, -1, &link, 1, 1, 0, 0};
  return static_cast<Bench *>(bench)->network.earliest(&one, 1);
}
PHN int64_t phn_next(void *bench) { return static_cast<Bench *>(bench)->network.next(); }
// Processes all events of the next moment, in every component; returns how many classes ended since the last phn_ended.
PHN int phn_step(void *bench) {
  Bench &b = *static_cast<Bench *>(bench);
  int64_t time = b.network.next();
  if (time == phn::NEVER) return static_cast<int>(b.ended.size());
  for (int c = 0; c < b.network.components(); ++c)
    if (b.network.next(c) == time) b.network.step(c, b.ended);
  return static_cast<int>(b.ended.size());
}
// Steps until nothing is left; returns how many classes have ended.
PHN int phn_run(void *bench) {
  Bench &b = *static_cast<Bench *>(bench);
  while (b.network.next() != phn::NEVER) phn_step(bench);
  return static_cast<int>(b.ended.size());
}
PHN void phn_ended(void *bench, int64_t *tags, int32_t *indices, int64_t *ends) {
  Bench &b = *static_cast<Bench *>(bench);
  for (size_t i = 0; i < b.ended.size(); ++i) {
    tags[i] = b.ended[i].tag;
    indices[i] = b.ended[i].index;
    ends[i] = b.ended[i].end;
  }
  b.ended.clear();
}
PHN double phn_rate(void *bench, int activity, int index) {
  return static_cast<Bench *>(bench)->network.rate(activity, index);
}
PHN int phn_component(void *bench, int activity, int index) {
  return static_cast<Bench *>(bench)->network.component(activity, index);
}
PHN int phn_busy(void *bench, int64_t until) {
  Bench &b = *static_cast<Bench *>(bench);
  b.network.take_busy(until, b.busy);
  return static_cast<int>(b.busy.size());
}
PHN void phn_take_busy(void *bench, int32_t *links, int64_t *starts, int64_t *ends, double *bytes) {
  Bench &b = *static_cast<Bench *>(bench);
  for (size_t i = 0; i < b.busy.size(); ++i) {
    links[i] = b.busy[i].link;
    starts[i] = b.busy[i].start;
    ends[i] = b.busy[i].end;
    bytes[i] = b.busy[i].bytes;
  }
  b.busy.clear();
}
