#include "engine.h"

#include "diagnosis.h"

namespace phe {

Engine::Engine(void *area)
    : header_(static_cast<ph_header *>(area)),
      names_(texts_),
      rank_table_(static_cast<char *>(area)),
      rows_(rank_table_.size()),
      devices_(*header_, noise_, progress_),
      launches_(prices_, rows_, rank_table_.size()),
      waits_(rank_table_, devices_, rows_, names_, progress_),
      payloads_(rank_table_, waits_, names_, failure_),
      links_(rank_table_, rows_),
      pipelines_(rank_table_),
      marks_(links_, pipelines_, settled_power_),
      communication_(rank_table_, texts_, prices_, links_, payloads_, rows_, noise_, progress_, failure_),
      comparison_(rank_table_, texts_, failure_),
      completions_(communication_, marks_, pipelines_, waits_, names_, rows_),
      ingest_(rank_table_, devices_, texts_, names_, launches_, marks_, communication_, payloads_, waits_, comparison_,
              rows_, progress_, failure_),
      clock_(rank_table_, devices_, links_, communication_, prices_, waits_, progress_, failure_) {
  devices_.tell(completions_);
  devices_.share(rank_table_.ranks());
  for (Rank &rank : rank_table_.ranks())
    if (rank.contexts.empty()) devices_.of(rank, 0);
}

// Every GPU goes on by itself until none can.
void Engine::advance() {
  while (failure_.none()) {
    bool before = progress_.moved;
    progress_.moved = false;
    communication_.price_transfers(ingest_.groups());
    for (Rank &rank : rank_table_.ranks())
      for (auto &context : rank.contexts)
        if (context->device.touched()) context->device.advance();
    bool again = progress_.moved;
    progress_.moved = again || before;
    if (!again) break;
  }
}

bool Engine::all_done() {
  if (open_) return false;
  for (const Rank &rank : rank_table_.ranks())
    if (!rank.exited || (ingest_.behind(rank) && !rank.died)) return false;
  return true;
}

// True if every rank waits for its GPU, or for bytes.
bool Engine::all_wait() {
  for (const Rank &rank : rank_table_.ranks()) {
    if (rank.exited) continue;
    bool waits = false;
    for (const Request &q : rank.requests) waits = waits || (!q.helper() && !q.query);
    if (!waits || ingest_.behind(rank)) return false;
  }
  return true;
}

int Engine::run(int waiting_us, int resting_us) {
  if (!quick_) prefer_short_slices();
  quick_ = true;
  timespec now;
  int64_t until = 0;
  int moved = PHE_IDLE;
  for (;;) {
    int reason = iterate();
    if (progress_.to_relay) wake_relay();
    if (reason & ~PHE_MOVED) return reason | moved;
    moved |= reason;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    int64_t ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (!until) until = ms + MOST_MS;
    if (ms >= until) return moved;
    if (reason & PHE_MOVED && !a_recording_runs_out()) continue;
    if (reason & PHE_MOVED || waiting_us <= 0) return moved;
    if (!sleep(a_rank_waits() ? waiting_us : resting_us)) return moved | PHE_SLEPT;
  }
}

int Engine::iterate() {
  progress_.moved = false;
  bool any = false;
  for (Rank &rank : rank_table_.ranks()) any |= ingest_.consume(rank);
  advance();
  progress_.news = progress_.news || any || progress_.moved;
  while (failure_.none() && !progress_.moved && !any && clock_.run()) advance();
  if (!failure_.none()) return PHE_ERROR;
  if (!any && !progress_.moved && all_wait() && communication_.send_ahead()) {
    progress_.news = progress_.moved = true;
    advance();
  }
  int reason = any || progress_.moved ? PHE_MOVED : PHE_IDLE;
  if (prices_.wanted()) reason |= PHE_PRICES;
  if (reason == PHE_IDLE && ingest_.takes_over()) {
    int64_t least = frontier();
    ingest_.begin_generation(least == NEVER ? 0 : least);
    progress_.news = true;
    return PHE_MOVED;
  }
  if (rows_.waiting() >= rows_wanted_) reason |= PHE_ROWS;
  if (reason == PHE_IDLE && all_done()) reason |= PHE_DONE;
  return reason;
}

// Until a rank says something; false: none has.
bool Engine::sleep(int timeout_us) {
  store<uint32_t>(&header_->sim_sleeping, 1);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  uint32_t bell = load(&header_->doorbell);
  bool fresh = a_rank_is_behind();
  if (!fresh) {
    timespec t{timeout_us / 1000000, (timeout_us % 1000000) * 1000};
    futex(&header_->doorbell, FUTEX_WAIT, bell, &t);
    fresh = a_rank_is_behind();
  }
  store<uint32_t>(&header_->sim_sleeping, 0);
  return fresh;
}

// Of the answers to ranks on other nodes (relay/mirror.h).
void Engine::wake_relay() {
  progress_.to_relay = false;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);  // the relay sets its flag, then looks for news
  if (!load(&header_->relay_sleeping)) return;
  __atomic_fetch_add(&header_->relay_bell, 1, __ATOMIC_SEQ_CST);
  futex(&header_->relay_bell, FUTEX_WAKE, 1, nullptr);
}

bool Engine::a_rank_is_behind() {
  const auto &ranks = rank_table_.ranks();
  return std::any_of(ranks.begin(), ranks.end(), [&](const Rank &rank) { return ingest_.behind(rank); });
}

// True if the ring of a recorded rank is less than half full.
bool Engine::a_recording_runs_out() {
  const auto &ranks = rank_table_.ranks();
  return rank_table_.plays() && std::any_of(ranks.begin(), ranks.end(), [&](const Rank &rank) {
           return !rank.exited && load(&rank.control->head) - ingest_.taken(rank) <= PH_RING_RECORDS / 2;
         });
}

bool Engine::a_rank_waits() {
  const auto &ranks = rank_table_.ranks();
  return std::any_of(ranks.begin(), ranks.end(), [](const Rank &rank) { return load(&rank.control->waiting) != 0; });
}

void Engine::price(int32_t id, const int64_t *durations, int count, int32_t name) {
  Price &price = prices_.set(id, durations, count, name);
  progress_.news = true;
  launches_.priced(price);
  auto operations = std::move(price.operations);
  price.operations.clear();
  for (auto &o : operations) communication_.finalize(*o);
}

// ------------------------------------------------------------------ sleepers
std::vector<Rank *> Engine::held(const int32_t *sleepers, int count) {
  std::vector<Rank *> held;
  for (int i = 0; i < count; ++i) held.push_back(&rank_table_[static_cast<size_t>(sleepers[i])]);
  for (Rank &rank : rank_table_.ranks()) {
    for (const Request &q : rank.requests)
      if (q.data && !q.helper()) held.push_back(&rank);
    const Player *player = rank_table_.player(rank);
    if (player && player->sleeps()) held.push_back(&rank);
  }
  return held;
}

bool Engine::release_sleepers(const int32_t *sleepers, int count) {
  std::vector<Rank *> ranks = held(sleepers, count);
  if (ranks.empty()) {
    advance();
    return false;
  }
  for (Rank *r : ranks) r->asleep = true;
  progress_.released = -1;
  progress_.news = true;
  waits_.hold();  // an answered rank may wake one whose clock is moved below
  bool moved = clock_.run(true);
  int by = progress_.released;
  for (Rank *r : ranks) {
    r->asleep = false;
    int64_t until = clock_.reached();
    if (!moved || until <= r->host) continue;
    r->sleep = {r->sleep.since < 0 ? r->host : r->sleep.since, until, by,
                by < 0 ? 0 : rank_table_[static_cast<size_t>(by)].answered};
    r->host = until;
    store(&r->control->floor, until);
    progress_.to_relay = true;
  }
  waits_.let_go();
  releases_ += moved;
  if (!moved && communication_.send_ahead()) moved = progress_.news = true;
  advance();
  wake_relay();
  return moved;
}

void Engine::rank_died(int index, int status) {
  Rank &rank = rank_table_[static_cast<size_t>(index)];
  while (!rank.exited && ingest_.behind(rank) && failure_.none()) {
    uint64_t before = ingest_.taken(rank);
    ingest_.consume(rank);
    if (ingest_.taken(rank) == before) break;  // a replayed rank waits for another
  }
  if (rank.exited) return;
  rank.exited = rank.died = true;
  rank.status = status;
  waits_.return_memory(rank, rank.host);
  rank.requests.clear();
  progress_.news = true;
  for (auto &context : rank.contexts) context->device.touch();
}

// ------------------------------------------------------------------ what it knows
int64_t Engine::frontier() {
  int64_t least = links_.network().next();
  for (const Rank &rank : rank_table_.ranks()) {
    for (auto &context : rank.contexts)
      if (!context->device.idle()) least = std::min(least, context->device.now());
    if (rank.exited) continue;
    int64_t host = NEVER;
    // If one rank has several waits (communicators made in a group), one may end sooner than the one that moved its
    // clock.
    for (const Request &q : rank.requests)
      if (!q.helper()) host = std::min(host, std::max(q.record.time, load(&rank.control->floor)));
    if (host == NEVER) host = rank.host;  // what its helper threads wait for has no rows
    if (rank.sleep.since >= 0) host = std::min(host, rank.sleep.until);  // its row comes with the rank's next record
    least = std::min(least, host);
  }
  return least;
}

int64_t Engine::take_rows(ph_row *out, int64_t capacity, bool everything) {
  int64_t until = NEVER;
  if (rows_.must_gather()) {
    // A communicator is numbered, and has its rows, when all have joined: nothing later goes before.
    if (!everything) until = std::min(frontier(), communication_.first_unnumbered());
    int64_t end = 0;
    for (const Device *device : devices_.all()) end = std::max(end, device->now());
    links_.write_carried(until, end);
    if (everything) write_power();
  }
  int64_t taken = rows_.take(out, capacity, until, [&](ph_row &row) { communication_.rename(row); });
  // The rest is not final yet, and may not be for long: a rank far behind, a communicator that a rank has not joined.
  if (taken < capacity) rows_wanted_ = rows_.waiting() + ROWS_WANTED;
  return taken;
}

// Energy of each GPU since its last row. The rows end after all others, of which some may have been taken.
void Engine::write_power() {
  int64_t end = rows_.latest();
  if (end <= metered_until_) return;  // nothing came since
  metered_until_ = end + 1;
  for (Device *device : devices_.all())
    if (device->used() && device->power().owes(end)) completions_.write_power(*device, end + 1);
}

int64_t Engine::take_records(int rank, ph_record *out, int64_t capacity, bool everything) {
  Recorder *from = rank_table_.recorder(rank_table_[static_cast<size_t>(rank)]);
  return from ? from->take(out, capacity, everything) : 0;
}

const std::string &Engine::diagnosis() {
  diagnosis_ = diagnose(rank_table_, communication_);
  return diagnosis_;
}

phe_rank_state Engine::state_of(int rank) {
  const Rank &r = rank_table_[static_cast<size_t>(rank)];
  if (r.exited) return PHE_RANK_EXITED;
  if (!r.started) return PHE_RANK_NOT_STARTED;
  phe_rank_state state = PHE_RANK_RUNS;
  for (const Request &q : r.requests)
    if (!q.helper()) state = std::max(state, q.data ? PHE_RANK_WAITS_FOR_BYTES : PHE_RANK_WAITS);
  return state;
}

phe_status Engine::status() {
  phe_status out{};
  int64_t latest = 0;
  for (const Rank &r : rank_table_.ranks()) {
    latest = std::max(latest, r.host);
    for (auto &context : r.contexts) latest = std::max(latest, context->device.now());
    out.exited += r.exited;
    out.alive += r.started && !r.exited;
    out.blocked += !r.requests.empty();
  }
  int64_t least = frontier();
  out.final_time = least == NEVER ? latest : least;
  out.records = ingest_.records();
  out.rows = rows_.waiting();
  out.late = progress_.late;
  out.marks = marks_.count();
  out.releases = releases_;
  out.device_peak = std::max(ingest_.device_peak(), waits_.shared_peak());
  return out;
}

}  // namespace phe
