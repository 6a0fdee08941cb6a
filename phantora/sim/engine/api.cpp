// The C interface of the engine, as phantora/wire/engine.py defines it.
#include "engine.h"

using phe::Engine;

namespace {
Engine &of(void *engine) { return *static_cast<Engine *>(engine); }
}  // namespace

uint32_t phe_layout(void) { return PHE_LAYOUT; }
void *phe_open(void *area) { return new Engine(area); }
void phe_close(void *engine) { delete &of(engine); }
void phe_set_timing(void *engine, int kind, const phe_timing *timing) { of(engine).set_timing(kind, *timing); }
void phe_set_power(void *engine, int kind, const phe_power_limit *limit) { of(engine).set_power(kind, *limit); }
void phe_set_power_factor(void *engine, int rank, double factor) { of(engine).set_power_factor(rank, factor); }
void phe_start_power(void *engine, int rank, const phe_power_state *state) {
  of(engine).settled_power().start(rank, state);
}
int phe_get_power(void *engine, int rank, phe_power_state *out) { return of(engine).settled_power().get(rank, *out); }
void phe_throttle(void *engine, int rank, int64_t start, int64_t end, double factor) {
  of(engine).throttle(rank, {start, end, factor});
}
void phe_straggler(void *engine, int rank, double factor) { of(engine).set_slowness(rank, factor); }
void phe_record(void *engine) { of(engine).record(); }
void phe_play(void *engine, double scale) { of(engine).play(scale); }
void phe_set_noise(void *engine, const phe_noise *noise) { of(engine).noise().set(*noise); }
int64_t phe_take_records(void *engine, int rank, void *out, int64_t capacity, int everything) {
  return of(engine).take_records(rank, static_cast<ph_record *>(out), capacity, everything != 0);
}
int64_t phe_take_rows(void *engine, void *out, int64_t capacity, int everything) {
  return of(engine).take_rows(static_cast<ph_row *>(out), capacity, everything != 0);
}
int phe_run(void *engine, int waiting_us, int resting_us) { return of(engine).run(waiting_us, resting_us); }

int phe_next_price(void *engine, phe_price_request *out) {
  const phe_price_request *request = of(engine).prices().next();
  if (request) *out = *request;
  return request != nullptr;
}
void phe_price_kernels(void *engine, int32_t price, phe_price_kernel *out) {
  const auto &kernels = of(engine).prices()[price].kernels;
  std::copy(kernels.begin(), kernels.end(), out);
}
void phe_set_flows(void *engine, int32_t price, int64_t latency_ns, double slowed, const phe_flow *flows, int count,
                   const int32_t *links, int link_count) {
  of(engine).prices().set_flows(price, latency_ns, slowed, flows, count, links, link_count);
}
void phe_set_profile(void *engine, int32_t price, const phe_kernel_profile *profile) {
  of(engine).prices()[price].profile = *profile;
}
void phe_set_price(void *engine, int32_t price, const int64_t *durations, int count, int32_t name) {
  of(engine).price(price, durations, count, name);
}

int phe_add_link(void *engine, double bandwidth, int32_t name, const int32_t *members, int count) {
  return of(engine).links().add(bandwidth, name, {members, members + count});
}
void phe_change_link(void *engine, int link, int64_t time, double bandwidth) {
  of(engine).links().network().change(link, time, bandwidth);
}
void phe_set_mark(void *engine, const char *prefix) { of(engine).marks().name(prefix); }
void phe_change_link_at_mark(void *engine, int link, int mark, double bandwidth) {
  of(engine).links().change_at_mark(link, mark, bandwidth);
}
void phe_background(void *engine, const int32_t *links, int hops, double rate) {
  of(engine).links().add_background({links, links + hops}, rate);
}
void phe_fold(void *engine, const int32_t *sizes, const int32_t *expanded, const int32_t *first_only, int axes) {
  of(engine).fold(phe::FoldedRanks({sizes, sizes + axes}, std::vector<bool>(expanded, expanded + axes),
                                   std::vector<bool>(first_only, first_only + axes)));
}
void phe_add_pipeline(void *engine, const int32_t *ranks, const int32_t *stages, int count, const double *factors,
                      int candidates) {
  of(engine).pipelines().add({ranks, ranks + count}, {stages, stages + count}, {factors, factors + count * candidates});
}
void phe_compare(void *engine, int representative, int first, int last, const char *axis, int uneven) {
  of(engine).comparison().expect(representative, first, last, axis, uneven != 0);
}
void phe_log_flows(void *engine) { of(engine).links().log_flows(); }
void phe_log_briefly(void *engine) { of(engine).log_briefly(); }

int32_t phe_intern(void *engine, int table, const char *text, int64_t length) {
  return of(engine).texts().intern(static_cast<phe_table>(table), std::string(text, static_cast<size_t>(length)));
}
int64_t phe_text_count(void *engine, int table) { return of(engine).texts().count(static_cast<phe_table>(table)); }
const char *phe_text(void *engine, int table, int32_t id, int64_t *length) {
  const std::string &text = of(engine).texts().text(static_cast<phe_table>(table), id);
  *length = static_cast<int64_t>(text.size());
  return text.data();
}
int phe_comm_ranks(void *engine, int32_t comm, int32_t *out, int capacity) {
  const std::vector<int> &ranks = of(engine).communication().communicator(comm).ranks;
  std::copy_n(ranks.begin(), std::min(ranks.size(), static_cast<size_t>(capacity)), out);
  return static_cast<int>(ranks.size());
}

int phe_error_kind(void *engine) { return of(engine).error_kind(); }
int phe_unlike(void *engine) { return of(engine).unlike(); }
const char *phe_error(void *engine) { return of(engine).error().c_str(); }
const char *phe_diagnose(void *engine) { return of(engine).diagnosis().c_str(); }
int phe_release_sleepers(void *engine, const int32_t *ranks, int count) {
  return of(engine).release_sleepers(ranks, count);
}
int phe_give_room(void *engine) { return of(engine).give_room(); }
int phe_state_of_rank(void *engine, int rank) { return of(engine).state_of(rank); }
void phe_rank_died(void *engine, int rank, int status) { of(engine).rank_died(rank, status); }
void phe_keep_open(void *engine, int open) { of(engine).keep_open(open != 0); }
void phe_get_status(void *engine, phe_status *out) { *out = of(engine).status(); }
