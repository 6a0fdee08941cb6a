// A rank and its simulator in one process, without Python: what sanitizers and valgrind can look at
// (`sanitized.py`, docs/reliability.md).
//
//     ring_driver FD ROUNDS
//
// FD is the shared memory of a session of one rank. The engine runs in a thread of its own over the rank's mapping, so
// that a detector of races sees both ends of the ring. The main thread launches kernels, copies and events on three
// streams, allocates and waits; two helper threads name things, look at events and ask for answers meanwhile.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "phantora_engine.h"
#include "rank/rank.h"

namespace {

constexpr int KERNELS = 12;

void answer_prices(void *engine) {
  phe_price_request request;
  while (phe_next_price(engine, &request)) {
    std::vector<phe_price_kernel> kernels(static_cast<size_t>(request.kernels > 0 ? request.kernels : 1));
    if (request.kernels > 0) phe_price_kernels(engine, request.id, kernels.data());
    std::vector<int64_t> durations;
    for (const auto &kernel : kernels) durations.push_back(1000 + 100 * kernel.grid_x);
    phe_set_price(engine, request.id, durations.data(), static_cast<int>(durations.size()), -1);
  }
}

int64_t take(void *engine, bool everything) {
  std::vector<ph_row> rows(4096);
  std::vector<ph_record> records(4096);
  int64_t count = 0;
  for (int64_t got; (got = phe_take_rows(engine, rows.data(), 4096, everything)) > 0;) count += got;
  while (phe_take_records(engine, 0, records.data(), 4096, everything) > 0) {}
  return count;
}

void simulate(void *area, int64_t *rows) {
  void *engine = phe_open(area);
  phe_timing timing{};
  timing.launch_latency_ns = 2000;
  timing.kernel_gap_ns = 500;
  phe_set_timing(engine, 0, &timing);
  phe_record(engine);
  for (int reason = 0; !(reason & PHE_DONE) || (reason & PHE_PRICES);) {
    reason = phe_run(engine, 2000, 2000);
    if (reason & PHE_ERROR) {
      std::fprintf(stderr, "engine: an error\n");
      std::abort();
    }
    if (reason & PHE_PRICES) answer_prices(engine);
    if (reason & PHE_ROWS) *rows += take(engine, false);
  }
  *rows += take(engine, true);
  phe_close(engine);
}

uint32_t named(int number) {
  std::string text = "kernel " + std::to_string(number);
  return ph_name(ph_hash(text.data(), text.size(), 1), text.data(), text.size());
}

void kernel(uint32_t stream, int number) {
  ph_record record = {};
  record.kind = PH_KERNEL;
  record.stream = stream;
  record.id = named(number);
  record.kernel.grid_x = static_cast<uint32_t>(1 + number);
  record.kernel.grid_y = record.kernel.grid_z = 1;
  record.kernel.block_x = 256;
  record.kernel.block_y = record.kernel.block_z = 1;
  ph_launch(&record);
}

void simple(enum ph_kind kind, uint32_t stream, uint32_t id, uint64_t bytes = 0) {
  ph_record record = {};
  record.kind = static_cast<uint8_t>(kind);
  record.stream = stream;
  record.id = id;
  if (kind == PH_MEMSET) record.fill.bytes = bytes;
  if (kind == PH_MEMCPY) {
    record.copy.bytes = bytes;
    record.copy.peer = -1;
  }
  ph_launch(&record);
}

void ask(enum ph_kind kind, uint32_t stream, uint32_t id) {
  ph_record record = {};
  record.kind = static_cast<uint8_t>(kind);
  record.stream = stream;
  record.id = id;
  if (ph_request(&record, nullptr, 0).status < 0) std::abort();
}

void help(int which, int rounds, uint32_t event) {
  ph_event *own = ph_event_create(0, 0);
  for (int round = 0; round < rounds; round++) {
    named(1000 * which + round);
    ask(PH_EVENT_QUERY, 0, event);
    void *memory = ph_pinned_alloc(static_cast<size_t>(4096 + 64 * round));
    std::memset(memory, which, 64);
    ph_pinned_free(memory);
  }
  ph_event_destroy(own);
}

void train(int rounds) {
  ph_stream *streams[3];
  for (int i = 0; i < 3; i++) streams[i] = ph_stream_create(0, 1, 0);
  ph_event *event = ph_event_create(0, 0);
  simple(PH_EVENT_RECORD, streams[0]->id, event->id);
  std::thread first(help, 1, rounds, event->id), second(help, 2, rounds, event->id);
  for (int round = 0; round < rounds; round++) {
    void *memory = ph_memory_alloc(0, static_cast<size_t>(1 + round % 7) << 20);
    std::vector<char> data(4096, static_cast<char>(round));
    ph_memory_copy(memory, data.data(), data.size());
    for (int i = 0; i < KERNELS; i++) kernel(streams[i % 3]->id, i);
    simple(PH_MEMCPY, streams[1]->id, PH_COPY_D2D, 1 << 20);
    simple(PH_MEMSET, streams[2]->id, 0, 4096);
    simple(PH_EVENT_RECORD, streams[1]->id, event->id);
    simple(PH_STREAM_WAIT, streams[2]->id, event->id);
    kernel(streams[2]->id, round % 5);
    ph_advance(3000);
    if (round % 4 == 3) ask(PH_STREAM_SYNC, streams[2]->id, 0);
    ph_memory_copy(data.data(), memory, data.size());
    if (data[17] != static_cast<char>(round)) std::abort();
    if (ph_memory_free(memory)) std::abort();
  }
  first.join();
  second.join();
  ask(PH_DEVICE_SYNC, 0, 0);
  ph_event_destroy(event);
  for (auto *stream : streams) ph_stream_destroy(stream);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3 || ph_connect(std::atoi(argv[1]), 0, 0, 1)) {
    std::perror("ring_driver FD ROUNDS");
    return 2;
  }
  auto *header = const_cast<ph_header *>(ph_shared());
  __atomic_store_n(&header->sim_state, PH_SIM_RUNNING, __ATOMIC_RELEASE);
  int64_t rows = 0;
  std::thread simulator(simulate, static_cast<void *>(header), &rows);
  train(std::atoi(argv[2]));
  ph_exit(0);
  simulator.join();
  std::printf("%lld rows\n", static_cast<long long>(rows));
  return rows > std::atoi(argv[2]) * KERNELS ? 0 : 1;
}
