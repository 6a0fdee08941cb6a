// The simulator's core: consumes the ranks' rings and places their work in virtual time.
//
// Each rank has one or more GPUs; a GPU has streams, a stream is a queue of items. A GPU advances
// event by event: an item is admitted when it heads its stream and its launch and dependencies are
// past, and completes when its work is done. Kernels share the GPU: each demands a part of the
// SMs, streams of higher priority and earlier admission go first, the rest waits; beside a NCCL
// kernel every class of kernels is slower by its factor. A GPU never passes the moment at which
// its host, a missing peer of a collective that runs on it, or other traffic on the wires could
// still change what happens (conservative advance; docs/virtual-time.md). Costs are asked from Python once per distinct
// piece of work and kept.
#include "state.h"

namespace phc {

Core::Core(void *area) : base(static_cast<char *>(area)), header(static_cast<ph_header *>(area)) {
  std::fill(std::begin(api_names), std::end(api_names), -1);
  ranks = std::vector<Rank>(header->world_size);
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].index = static_cast<int>(r);
    ranks[r].control = reinterpret_cast<ph_control *>(base + header->control_offset) + r;
    ranks[r].ring = reinterpret_cast<ph_record *>(base + header->ring_offset) + r * PH_RING_RECORDS;
    gpu_of(ranks[r], 0);
    ranks[r].replies = reinterpret_cast<ph_reply *>(base + header->reply_offset) + r * PH_REPLY_SLOTS;
  }
  api_names[PH_STREAM_SYNC] = intern(NAMES, "cudaStreamSynchronize");
  api_names[PH_DEVICE_SYNC] = intern(NAMES, "cudaDeviceSynchronize");
  api_names[PH_EVENT_SYNC] = intern(NAMES, "cudaEventSynchronize");
  api_names[PH_ROOM] = intern(NAMES, "cudaLaunchKernel");
  api_names[PH_MEMCPY] = intern(NAMES, "cudaMemcpyAsync");
  api_names[PH_MEMSET] = intern(NAMES, "cudaMemset");
  api_names[PH_EVENT_RECORD] = intern(NAMES, "cudaEventRecord");
  api_names[PH_STREAM_WAIT] = intern(NAMES, "cudaStreamWaitEvent");
  api_names[PH_EXCHANGE] = intern(NAMES, "ncclCommInit");
  api_names[PH_HOST_FUNC] = intern(NAMES, "cudaLaunchHostFunc");
}

int32_t Core::intern(Table table, const std::string &text) {
  auto [it, fresh] = index[table].try_emplace(text, static_cast<int32_t>(texts[table].size()));
  if (fresh) texts[table].push_back(text);
  return it->second;
}

void Core::fail(std::string text) {
  if (error.empty()) error = std::move(text);
}

void Core::advance() {
  for (int round = 0; round < 1000000 && error.empty(); ++round) {
    bool before = progressed;
    progressed = false;
    price_pairs();
    for (Rank &rank : ranks)
      for (auto &g : rank.gpus) {
        if (g->dirty) run(*g);
      }
    bool again = progressed;
    progressed = progressed || before;
    if (!again) break;
  }
}

bool Core::all_done() const {
  for (const Rank &rank : ranks) {
    if (!rank.exited) return false;
    if (rank.tail != load(&rank.control->head) && !rank.died) return false;
  }
  return true;
}

int64_t Core::frontier() {
  int64_t least = NEVER;
  for (Rank &rank : ranks) {
    if (rank.exited) {
      for (auto &g : rank.gpus)
        if (!g->busy.empty()) least = std::min(least, g->now);
      continue;
    }
    int64_t host = rank.requests.empty() ? rank.host : NEVER;
    for (const Request &q : rank.requests) host = std::min(host, std::max(q.record.time, rank.host));
    least = std::min(least, host);
    for (auto &g : rank.gpus)
      if (!g->busy.empty()) least = std::min(least, g->now);
  }
  return std::min(least, network.next());
}

int Core::run_once(int timeout_us) {
  progressed = false;
  bool any = false;
  for (Rank &rank : ranks) any |= consume(rank);
  if (error.empty()) advance();
  news = news || any || progressed;
  while (error.empty() && !progressed && !any && sweep()) advance();
  if (!error.empty()) return PHC_ERROR;
  int reason = any || progressed ? PHC_MOVED : PHC_IDLE;
  if (!wanted.empty()) reason |= PHC_PRICES;
  if (row_count >= ROWS_WANTED) reason |= PHC_ROWS;
  if (reason == PHC_IDLE && all_done()) reason |= PHC_DONE;
  if (reason != PHC_IDLE || timeout_us <= 0) return reason;
  store<uint32_t>(&header->sim_sleeping, 1);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  uint32_t bell = load(&header->doorbell);
  bool fresh = false;
  for (Rank &rank : ranks) fresh = fresh || load(&rank.control->head) != rank.tail;
  if (!fresh) {
    timespec t{timeout_us / 1000000, (timeout_us % 1000000) * 1000};
    futex(&header->doorbell, FUTEX_WAIT, bell, &t);
  }
  store<uint32_t>(&header->sim_sleeping, 0);
  return PHC_IDLE;
}

// Ranks asleep outside CUDA (and those that wait for bytes) hold nobody back any longer. The
// earliest answer that this allows is given, and their clocks move to at least that moment.
bool Core::overtake(const int32_t *sleepers, int count) {
  std::vector<Rank *> held;
  for (int i = 0; i < count; ++i) held.push_back(&ranks[sleepers[i]]);
  for (Rank &rank : ranks) {
    for (const Request &q : rank.requests)
      if (q.data && !(q.record.flags & PH_F_HELPER)) held.push_back(&rank);
    if (rank.player && rank.player->sleeps) held.push_back(&rank);
  }
  if (held.empty()) return false;
  for (Rank *r : held) r->asleep = true;
  released = -1;
  news = true;
  bool moved = sweep(true);
  for (Rank *r : held) {
    r->asleep = false;
    if (moved && swept > r->host) {
      if (r->nap.since < 0) r->nap.since = r->host;
      r->nap.until = swept;
      r->nap.by = released;
      r->nap.answers = released < 0 ? 0 : ranks[released].answered;
      r->host = swept;
      store(&r->control->floor, swept);
    }
  }
  if (moved) ++overtakes;
  return moved;
}

}  // namespace phc
