// The ring to the simulator and the replies from it (phantora/wire/layout.py).
//
// One producer: threads of the rank write one after the other under the emit lock. Head and tail count without
// end. The simulator is woken only for a request, for a ring that became half full and at the end.
#define _GNU_SOURCE
#include "rank/runtime/runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXIT_SIMULATOR_GONE 70  // EX_SOFTWARE
#define LIVENESS_MS 500  // period at which a waiting thread checks that the simulator is alive

static uint64_t head;       // the value of control->head
static uint64_t tail_seen;  // a value that control->tail has had
static uint32_t slots_used; // bit per reply slot
static pthread_mutex_t slot_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t slot_freed = PTHREAD_COND_INITIALIZER;

void ph_ring_reset(void) {
  slot_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  slot_freed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  slots_used = 0;
  head = ph_rt.control ? ph_rt.control->head : 0;
  tail_seen = ph_rt.control ? __atomic_load_n(&ph_rt.control->tail, __ATOMIC_ACQUIRE) : 0;
}

// Ends the process when the simulator is gone or aborts.
static void check_simulator(void) {
  if (!ph_live()) return;
  if (__atomic_load_n(&ph_rt.header->sim_state, __ATOMIC_ACQUIRE) == PH_SIM_ABORTED) _exit(EXIT_SIMULATOR_GONE);
  if (!kill(ph_rt.header->sim_pid, 0) || errno != ESRCH) return;
  dprintf(STDERR_FILENO, "phantora: the simulator is gone; rank %d ends\n", ph_rt.rank);
  _exit(EXIT_SIMULATOR_GONE);
}

static void check_aborted(void) {
  if (__atomic_load_n(&ph_rt.header->sim_state, __ATOMIC_RELAXED) == PH_SIM_ABORTED) check_simulator();
}

static void futex_wait(uint32_t *word, uint32_t value, int ms) {
  struct timespec timeout = {ms / 1000, ms % 1000 * 1000000L};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

static void wake_simulator(void) {
  ph_header *header = ph_rt.header;
  atomic_thread_fence(memory_order_seq_cst);  // the head is visible before we read which side sleeps
  if (!__atomic_load_n(&header->sim_sleeping, __ATOMIC_RELAXED)) return;
  __atomic_fetch_add(&header->doorbell, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &header->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void wait_for_room(void) {
  ph_control *control = ph_rt.control;
  int ms = 1;  // short at first: the simulator may have missed the flag while we set it
  for (;;) {
    uint32_t bell = __atomic_load_n(&control->tail_futex, __ATOMIC_ACQUIRE);
    __atomic_store_n(&control->producer_waiting, 1, __ATOMIC_RELEASE);
    wake_simulator();
    tail_seen = __atomic_load_n(&control->tail, __ATOMIC_ACQUIRE);
    if (head - tail_seen < PH_RING_RECORDS) break;
    check_simulator();
    futex_wait(&control->tail_futex, bell, ms);
    ms = ms * 2 < LIVENESS_MS ? ms * 2 : LIVENESS_MS;
  }
  __atomic_store_n(&control->producer_waiting, 0, __ATOMIC_RELEASE);
}

static void put(const void *record) {
  if (head - tail_seen >= PH_RING_RECORDS) wait_for_room();
  memcpy(&ph_rt.ring[head & (PH_RING_RECORDS - 1)], record, sizeof(ph_record));
  __atomic_store_n(&ph_rt.control->head, ++head, __ATOMIC_RELEASE);
  if (head - tail_seen < PH_RING_RECORDS / 2) return;
  tail_seen = __atomic_load_n(&ph_rt.control->tail, __ATOMIC_ACQUIRE);
  if (head - tail_seen >= PH_RING_RECORDS / 2) wake_simulator();
}

static void put_blob(const void *data, size_t length) {
  ph_blob piece = {.kind = PH_BLOB, .slot = PH_NO_SLOT};
  for (size_t at = 0; at < length; at += PH_BLOB_BYTES) {
    piece.used = (uint32_t)(length - at < PH_BLOB_BYTES ? length - at : PH_BLOB_BYTES);
    memcpy(piece.data, (const char *)data + at, piece.used);
    put(&piece);
  }
}

static bool is_launch(uint8_t kind) {
  return kind == PH_KERNEL || kind == PH_MEMCPY || kind == PH_MEMSET || kind == PH_COLLECTIVE || kind == PH_SEND ||
         kind == PH_RECV || kind == PH_PEER_COPY || kind == PH_PUT_SIGNAL || kind == PH_WAIT_SIGNAL;
}

static void tell(ph_listener *listener, const ph_record *record) {
  ph_self.correlation = listener(record, false);
  if (!is_launch(record->kind)) return;
  ph_record mark = {.kind = PH_CORRELATE,
                    .slot = PH_NO_SLOT,
                    .thread = record->thread,
                    .id = ph_self.correlation,
                    .time = record->time};
  put(&mark);
}

static void emit(ph_record *record, const void *blob, size_t length) {
  ph_thread *self = ph_this_thread();
  ph_emit_lock();
  record->thread = self->index;
  if (!self->moves_clock) record->flags |= PH_F_HELPER;
  record->time = ph_now();
  ph_listener *listener = atomic_load_explicit(&ph_listens, memory_order_relaxed);
  if (listener && self->moves_clock) tell(listener, record);
  if (length) put_blob(blob, length);
  put(record);
  ph_publish_clock();
  if (record->slot != PH_NO_SLOT || record->kind == PH_RANK_EXIT || record->kind == PH_RANK_START) wake_simulator();
  ph_emit_unlock();
}

void ph_emit_blob(ph_record *record, const void *data, size_t length) {
  if (!ph_recording()) return;
  check_aborted();
  record->slot = PH_NO_SLOT;
  emit(record, data, length);
}

void ph_emit(ph_record *record) { ph_emit_blob(record, NULL, 0); }

// ---------------------------------------------------------------- requests
static unsigned take_slot(void) {
  pthread_mutex_lock(&slot_mutex);
  while (slots_used == (1U << PH_REPLY_SLOTS) - 1) pthread_cond_wait(&slot_freed, &slot_mutex);
  unsigned slot = (unsigned)__builtin_ctz(~slots_used);
  slots_used |= 1U << slot;
  pthread_mutex_unlock(&slot_mutex);
  return slot;
}

static void free_slot(unsigned slot) {
  pthread_mutex_lock(&slot_mutex);
  slots_used &= ~(1U << slot);
  pthread_cond_signal(&slot_freed);
  pthread_mutex_unlock(&slot_mutex);
}

#define LONG_WAIT_NS 1000000000  // a collective may run into its timeout meanwhile

// True if this thread has Python's interpreter lock. So the thread that moves the clock waits for it, and for us, awake
// now and then: the simulator must not take it for one that works.
static bool holds_interpreter(void) {
  static int (*check)(void);
  static atomic_bool sought;
  if (!atomic_load_explicit(&sought, memory_order_acquire)) {
    check = dlsym(RTLD_DEFAULT, "PyGILState_Check");
    atomic_store_explicit(&sought, true, memory_order_release);
  }
  return check && check();
}

// A wait of a thread whose work has its place in time elsewhere (clock/apart.c): a copy is sent, and nothing is asked.
static bool passes(ph_record *record) {
  if (record->kind == PH_MEMCPY) {
    record->flags &= (uint8_t)~PH_F_SYNC;
    ph_emit(record);
    return true;
  }
  return record->kind == PH_STREAM_SYNC || record->kind == PH_EVENT_SYNC || record->kind == PH_DEVICE_SYNC;
}

ph_answer ph_ask(ph_record *record, const void *blob, size_t length, uint8_t *data, size_t *got) {
  if (got) *got = 0;
  if (is_launch(record->kind)) ph_attribute(record);
  if (!ph_recording()) return (ph_answer){.status = 0, .time = ph_now()};
  if (ph_self.passes_waits && passes(record)) return (ph_answer){.status = 0, .time = ph_now()};
  check_aborted();
  bool moves = ph_this_thread()->moves_clock;
  unsigned slot = take_slot();
  ph_reply *reply = &ph_rt.replies[slot];
  __atomic_store_n(&reply->futex, 0, __ATOMIC_RELAXED);
  record->slot = (uint8_t)slot;
  if (moves) record->flags |= PH_F_BLOCKED;
  bool holding = !moves && holds_interpreter();
  __atomic_fetch_add(&ph_rt.control->waiting, 1, __ATOMIC_SEQ_CST);
  if (holding) __atomic_fetch_add(&ph_rt.control->holding, 1, __ATOMIC_SEQ_CST);
  emit(record, blob, length);
  while (!__atomic_load_n(&reply->futex, __ATOMIC_ACQUIRE)) {
    futex_wait(&reply->futex, 0, LIVENESS_MS);
    if (!__atomic_load_n(&reply->futex, __ATOMIC_ACQUIRE)) check_simulator();
  }
  ph_answer answer = {reply->status, reply->time, reply->value};
  if (data && got) {
    *got = reply->length < PH_REPLY_BYTES ? reply->length : PH_REPLY_BYTES;
    memcpy(data, reply->data, *got);
  }
  if (ph_self.borrows_clock && record->kind == PH_EVENT_QUERY) moves = false;  // a watchdog's question moves no clock
  if (moves && answer.time - ph_now() < LONG_WAIT_NS) ph_raise_clock(answer.time);
  ph_listener *listener = atomic_load_explicit(&ph_listens, memory_order_relaxed);
  if (listener && moves) listener(record, true);
  if (holding) __atomic_fetch_sub(&ph_rt.control->holding, 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_sub(&ph_rt.control->waiting, 1, __ATOMIC_SEQ_CST);
  free_slot(slot);
  if (moves && answer.time > ph_now()) {  // watchdogs make the polls that fall into a long wait
    ph_upper.sleep(answer.time - ph_now());
    ph_raise_clock(answer.time);
  }
  return answer;
}

bool ph_asking(void) { return ph_live() && __atomic_load_n(&ph_rt.control->waiting, __ATOMIC_ACQUIRE); }

static _Atomic uint64_t last_ticket;
uint64_t ph_next_ticket(void) { return atomic_fetch_add(&last_ticket, 1) + 1; }

size_t ph_ask_bytes(ph_record *record, void *out, size_t room, int64_t *value) {
  uint8_t *all = malloc(PH_REPLY_BYTES);
  size_t got = 0;
  *value = 0;
  if (!all) return 0;
  ph_answer answer = ph_ask(record, NULL, 0, all, &got);
  if (answer.status >= 0) *value = answer.value;
  if (got > room) got = room;
  memcpy(out, all, got);
  free(all);
  return got;
}

ph_answer ph_request(ph_record *record, const void *blob, size_t length) {
  bool watchdog = ph_self.borrows_clock;
  if (watchdog) ph_upper.watchdog_asks(true);
  ph_answer answer = ph_ask(record, blob, length, NULL, NULL);
  if (watchdog) ph_upper.watchdog_asks(false);
  if (answer.status == 1 && watchdog) ph_upper.watchdog_work();
  return answer;
}

int ph_fetch(uint64_t ticket, uint8_t *data, size_t total, size_t offset) {
  uint8_t *piece = malloc(PH_REPLY_BYTES);
  if (!piece) return -ENOMEM;
  int status = 0;
  while (offset < total && status >= 0) {
    ph_record record = {.kind = PH_PAYLOAD, .payload = {.ticket = ticket, .offset = offset}};
    size_t got;
    status = ph_ask(&record, NULL, 0, piece, &got).status;
    if (status < 0 || !got) break;
    if (got > total - offset) got = total - offset;
    memcpy(data + offset, piece, got);
    offset += got;
  }
  free(piece);
  return offset < total ? (status < 0 ? status : -EPROTO) : 0;
}

int ph_exchange(uint64_t key_hi, uint64_t key_lo, int members, int index, const void *mine, size_t length,
                uint8_t **out, size_t *out_length) {
  *out = NULL;
  *out_length = 0;
  if (members < 1 || index < 0 || index >= members || length > UINT32_MAX) {
    errno = EINVAL;
    return -1;
  }
  const bool spoken_for =
      ph_shared() && ph_shared()->folded;  // others, which take part for it by comparison with ranks like them
  if ((members == 1 && !spoken_for) || !ph_recording()) {
    if (members > 1) {
      dprintf(STDERR_FILENO, "phantora: rank %d cannot exchange data with %d others: %s\n", ph_rt.rank, members - 1,
              ph_live() ? "nothing is simulated in this mode" : "not connected to a simulator");
      errno = ENOTCONN;
      return -1;
    }
    uint32_t size = (uint32_t)length;
    if (!(*out = malloc(sizeof size + length))) return -1;
    memcpy(*out, &size, sizeof size);
    if (length) memcpy(*out + sizeof size, mine, length);
    *out_length = sizeof size + length;
    return 0;
  }
  ph_record record = {.kind = PH_EXCHANGE,
                      .exchange = {.key_hi = key_hi,
                                   .key_lo = key_lo,
                                   .members = (uint64_t)members,
                                   .ticket = ph_next_ticket(),
                                   .index = (uint64_t)index}};
  uint8_t *first = malloc(PH_REPLY_BYTES);
  if (!first) return -1;
  size_t got;
  ph_answer answer = ph_ask(&record, mine, length, first, &got);
  size_t total = answer.value > 0 ? (size_t)answer.value : 0;
  uint8_t *all = answer.status < 0 || got > total ? NULL : realloc(first, total ? total : 1);
  if (!all) {
    free(first);
    errno = EPROTO;
    return -1;
  }
  if (got < total && ph_fetch(record.exchange.ticket, all, total, got)) {
    free(all);
    errno = EPROTO;
    return -1;
  }
  *out = all;
  *out_length = total;
  return 0;
}

int ph_meet_peer(const uint64_t key[2], uint32_t comm, int peer, int index) {
  ph_record record = {
      .kind = PH_EXCHANGE,
      .id = comm,
      .stream = (uint32_t)peer,
      .exchange = {
          .key_hi = key[0], .key_lo = key[1], .members = 2, .ticket = ph_next_ticket(), .index = (uint64_t)index}};
  uint8_t reply[2 * sizeof(uint32_t)];
  size_t got;
  return ph_ask(&record, NULL, 0, reply, &got).status;
}
