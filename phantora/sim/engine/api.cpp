// The C interface of the engine (engine.h), for library.py.
#include "state.h"

#include <math.h>
#include <string.h>

using namespace phc;

#define PHC extern "C" __attribute__((visibility("default")))

PHC void *phc_open(void *area) { return new Core(area); }
PHC void phc_close(void *core) { delete static_cast<Core *>(core); }
PHC void phc_timing(void *core, int64_t launch_latency_ns, int64_t kernel_gap_ns, int64_t crowded_gap_ns) {
  static_cast<Core *>(core)->launch_latency = launch_latency_ns;
  static_cast<Core *>(core)->kernel_gap = kernel_gap_ns;
  static_cast<Core *>(core)->crowded_gap = crowded_gap_ns;
}
PHC void phc_power(void *core, double budget_watts, double exponent, double communication_watts, double response_ns,
                   double reaction_ns) {
  static_cast<Core *>(core)->power = {budget_watts, exponent, communication_watts, response_ns, reaction_ns};
}
PHC void phc_appetite(void *core, int rank, double factor) { static_cast<Core *>(core)->ranks[rank].appetite = factor; }
PHC void phc_record(void *core) {
  for (Rank &rank : static_cast<Core *>(core)->ranks) rank.recorder = std::make_unique<Recorder>();
}
PHC void phc_play(void *core, double scale) {
  for (Rank &rank : static_cast<Core *>(core)->ranks) {
    rank.player = std::make_unique<Player>();
    rank.player->scale = scale;
  }
}
PHC int64_t phc_take_records(void *core, int rank, ph_record *out, int64_t capacity, int everything) {
  Core &c = *static_cast<Core *>(core);
  return c.take_records(c.ranks[rank], out, capacity, everything != 0);
}
PHC int phc_run(void *core, int timeout_us) { return static_cast<Core *>(core)->run_once(timeout_us); }
PHC int phc_next_price(void *core, phc_price_request *out) {
  Core &c = *static_cast<Core *>(core);
  if (c.wanted.empty()) return 0;
  *out = c.prices[c.wanted.front()]->request;
  c.wanted.pop_front();
  return 1;
}
PHC void phc_price_kernels(void *core, int32_t id, phc_price_kernel *out) {
  auto &kernels = static_cast<Core *>(core)->prices[id]->kernels;
  std::copy(kernels.begin(), kernels.end(), out);
}
// Before phc_set_price. `links` holds the links of all flows, one flow after the other.
PHC void phc_set_flows(void *core, int32_t id, int64_t latency_ns, const phc_flow *flows, int count, const int32_t *links, int link_count) {
  Price &p = *static_cast<Core *>(core)->prices[id];
  p.latency = latency_ns;
  p.links.assign(links, links + link_count);
  const int32_t *way = p.links.data();
  for (int i = 0; i < count; ++i) {
    p.flows.push_back({flows[i].src, flows[i].dst, way, flows[i].hops, flows[i].count, flows[i].bytes, flows[i].rate});
    p.routes.push_back(flows[i].name);
    way += flows[i].hops;
  }
}
// Before phc_set_price.
PHC void phc_set_nature(void *core, int32_t id, const phc_nature *nature) {
  static_cast<Core *>(core)->prices[id]->nature = *nature;
}
PHC void phc_set_price(void *core, int32_t id, const int64_t *durations, int count, int cls, int32_t name) {
  Core &c = *static_cast<Core *>(core);
  Price &p = *c.prices[id];
  c.unpriced_comm -= !p.known && Core::is_communication(p);
  c.news = true;
  p.durations.assign(durations, durations + count);
  p.known = true;
  p.least = p.flows.empty() ? durations[0] : p.latency + phn::alone(p.flows);
  p.cls = static_cast<uint8_t>(cls);
  p.name = name;
  p.kernels.clear();
  for (size_t i = 0; i < p.waiting.size(); ++i) {
    auto [stream, seq] = p.waiting[i];
    if (Item *item = c.item_at(stream, seq)) c.apply_price(*stream, *item, p, p.part[i]);
    stream->gpu->dirty = true;
  }
  p.waiting.clear();
  p.part.clear();
  auto collectives = std::move(p.collectives);
  auto pairs = std::move(p.pairs);
  for (auto &x : collectives) c.settle(*x);
  for (auto &x : pairs) c.settle(*x);
}
PHC int32_t phc_intern(void *core, int table, const char *text, int64_t length) {
  return static_cast<Core *>(core)->intern(static_cast<Table>(table), std::string(text, static_cast<size_t>(length)));
}
PHC int64_t phc_text_count(void *core, int table) { return static_cast<int64_t>(static_cast<Core *>(core)->texts[table].size()); }
PHC const char *phc_text(void *core, int table, int32_t id, int64_t *length) {
  const std::string &text = static_cast<Core *>(core)->texts[table][id];
  *length = static_cast<int64_t>(text.size());
  return text.data();
}
PHC int phc_comm_ranks(void *core, int32_t comm, int32_t *out, int capacity) {
  const auto &ranks = static_cast<Core *>(core)->comms[comm]->ranks;
  for (size_t i = 0; i < ranks.size() && static_cast<int>(i) < capacity; ++i) out[i] = ranks[i];
  return static_cast<int>(ranks.size());
}
// `members`: ranks that can put traffic on it; none: all. Links are numbered from 0.
PHC int phc_add_link(void *core, double bandwidth, int32_t name, const int32_t *members, int count) {
  return static_cast<Core *>(core)->add_link(bandwidth, name, members, count);
}
PHC void phc_change_link(void *core, int link, int64_t time, double bandwidth) {
  static_cast<Core *>(core)->network.change(link, time, bandwidth);
}
PHC void phc_change_link_at_step(void *core, int link, int step, double bandwidth) {
  static_cast<Core *>(core)->step_changes.push_back({link, step, bandwidth});
}
PHC void phc_background(void *core, const int32_t *links, int hops, double rate) {
  Core &c = *static_cast<Core *>(core);
  c.background.emplace_back(links, links + hops);
  phn::FlowClass flow{-1, -1, c.background.back().data(), hops, 1, INFINITY, rate};
  c.network.begin(0, &flow, 1, -1);
}
PHC void phc_straggler(void *core, int rank, double factor) { static_cast<Core *>(core)->ranks[rank].slowness = factor; }
PHC void phc_log_flows(void *core) {
  static_cast<Core *>(core)->flow_rows = true;
  static_cast<Core *>(core)->network.watch_links();
}
PHC int64_t phc_take_rows(void *core, ph_row *out, int64_t capacity, int everything) {
  return static_cast<Core *>(core)->take_rows(out, capacity, everything != 0);
}
PHC const char *phc_error(void *core) { return static_cast<Core *>(core)->error.c_str(); }
PHC const char *phc_diagnose(void *core) { return static_cast<Core *>(core)->diagnose().c_str(); }
PHC int phc_overtake(void *core, const int32_t *ranks, int count) {
  Core &c = *static_cast<Core *>(core);
  bool moved = c.overtake(ranks, count);
  c.advance();
  return moved;
}
PHC int phc_give_room(void *core) { return static_cast<Core *>(core)->give_room(); }
// 0 not started, 1 runs, 2 waits for virtual time, 3 waits for bytes or an exchange, 4 exited
PHC int phc_rank_state(void *core, int rank) {
  const Rank &r = static_cast<Core *>(core)->ranks[rank];
  if (r.exited) return 4;
  if (!r.started) return 0;
  int state = 1;
  for (const Request &q : r.requests)
    if (!(q.record.flags & PH_F_HELPER)) state = std::max(state, q.data ? 3 : 2);
  return state;
}
PHC void phc_rank_died(void *core, int rank, int status) {
  Core &c = *static_cast<Core *>(core);
  Rank &r = c.ranks[rank];
  while (!r.exited && r.tail != load(&r.control->head) && c.error.empty()) c.consume(r);
  if (r.exited) return;
  r.exited = r.died = true;
  r.status = status;
  r.requests.clear();
  c.news = true;
  for (auto &g : r.gpus) g->dirty = true;
}
PHC void phc_get_status(void *core, phc_status *out) {
  Core &c = *static_cast<Core *>(core);
  memset(out, 0, sizeof *out);
  int64_t latest = 0;
  for (Rank &r : c.ranks) {
    latest = std::max(latest, r.host);
    for (auto &g : r.gpus) latest = std::max(latest, g->now);
    out->exited += r.exited;
    out->alive += r.started && !r.exited;
    out->blocked += !r.requests.empty();
  }
  int64_t frontier = c.frontier();
  out->final_time = frontier == NEVER ? latest : frontier;
  out->records = c.records;
  out->rows = c.row_count;
  out->late = c.late;
  out->steps = c.steps;
  out->overtakes = c.overtakes;
  out->device_peak = c.device_peak;
}
