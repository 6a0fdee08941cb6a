#include "gpu/device.h"

#include <math.h>

#include <algorithm>
#include <map>

#include "communication/operation.h"
#include "prices.h"

namespace phe {
namespace {

// A product of a library fills the GPU too, but begins with a memset.
bool fills(const Item &item) { return item.type == Item::KERNEL && item.demand >= 1; }
bool product(const Item &item) { return fills(item) && item.flags & PH_F_LIBRARY; }
// A copy engine's work goes on next to whatever runs on the SMs.
bool on_engine(const Item &item) {
  return item.type == Item::COPY
  ? item.sub != PH_COPY_D2D : item.type == Item::COMM && item.comm->copies;
}

}  // namespace

// ------------------------------------------------------------------ the model
float DeviceModel::demand(const ph_kernel_fields &launch) const {
  double blocks = static_cast<double>(launch.grid_x) * launch.grid_y * launch.grid_z;
  int64_t threads = std::max<int64_t>(1, int64_t{launch.block_x} * launch.block_y * launch.block_z);
  int by_threads = static_cast<int>((gpu->max_threads_per_sm ? gpu->max_threads_per_sm : 2048) / threads);
  int per_sm = std::max(1, std::min(gpu->max_blocks_per_sm ? gpu->max_blocks_per_sm : 32, by_threads));
  double capacity = static_cast<double>(std::max(1, gpu->sms)) * per_sm;
  return static_cast<float>(std::min(1.0, std::max(blocks, 1.0) / capacity));
}

float DeviceModel::demand(uint64_t copied_bytes) const {
  if (timing.filling_copy_bytes <= 0) return 1.0f;
  return static_cast<float>(
      std::min(1.0, static_cast<double>(copied_bytes) / static_cast<double>(timing.filling_copy_bytes)));
}

// ------------------------------------------------------------------ all devices
Device &Devices::make(Rank &first) {
  devices_.push_back(std::make_unique<Device>(first, all_.size(), model(first), *listener_, noise_, progress_));
  all_.push_back(devices_.back().get());
  return *all_.back();
}

Context &Devices::make(Rank &rank, int number, Device &device) {
  rank.contexts.push_back(std::make_unique<Context>(rank, number, device));
  device.add(*rank.contexts.back(), !header_.mps);
  return *rank.contexts.back();
}

Context &Devices::context(Rank &rank, int number) {
  auto find = [&](int wanted) {
    auto it = std::find_if(rank.contexts.begin(), rank.contexts.end(), [&](auto &c) { return c->number == wanted; });
    return it == rank.contexts.end() ? nullptr : it->get();
  };
  for (int i = 0; i <= number; ++i)
    if (!find(i)) make(rank, i, make(rank));
  return *find(number);
}

void Devices::home(Rank &rank, int number) {
  if (header_.gpus_per_host) rank.contexts[0]->number = number;
}

void Devices::share(const std::vector<std::reference_wrapper<Rank>> &ranks) {
  if (!header_.gpus_per_host) return;
  std::map<std::pair<uint32_t, uint32_t>, Device *> gpus;  // by host and number
  for (Rank &rank : ranks) {
    uint32_t index = static_cast<uint32_t>(rank.index), number = index % header_.ranks_per_host % header_.gpus_per_host;
    Device *&gpu = gpus[{index / header_.ranks_per_host, number}];
    if (!gpu) gpu = &make(rank);
    make(rank, static_cast<int>(number), *gpu);
  }
}

Stream &Devices::stream(Rank &rank, uint32_t id, int device) {
  auto it = rank.streams.find(id);
  if (it != rank.streams.end()) return *it->second;
  auto s = std::make_unique<Stream>();
  s->id = id;
  s->legacy = device < 0;
  s->context = &context(rank, device < 0 ? static_cast<int>(id) : device);
  s->device = &s->context->device;
  if (s->legacy) s->context->default_stream = s.get();
  return *(rank.streams[id] = std::move(s));
}

// ------------------------------------------------------------------ owner
void Device::add(Context &context, bool sliced) {
  context.place = static_cast<int>(contexts_.size());
  contexts_.push_back(&context);
  if (sliced && contexts_.size() > 1) slices_.start();
}

int64_t Device::host_limit() const {
  int64_t limit = contexts_[0]->rank.host_limit();
  for (size_t i = 1; i < contexts_.size(); ++i) limit = std::min(limit, contexts_[i]->rank.host_limit());
  return limit;
}

// ------------------------------------------------------------------ what is enqueued
Item &Device::push(Stream &s, Item &&item) {
  if (s.queue.empty() && !s.context->failed) busy_.push_back(&s);
  ++s.enqueued;
  if (item.id > 0) {
    s.last_id = item.id;
    ++s.commands;
  }
  item.priority = s.priority;
  item.issued = item.shares() || item.type == Item::COMM ? ++issued_ : 0;
  dirty_ = true;
  s.queue.push_back(std::move(item));
  return s.queue.back();
}

// A wait that the rules of the default stream imply.
void Device::enqueue_wait(Stream &s, Dep dep, int64_t launch) {
  if (Item::done(dep)) return;
  Item item;
  item.type = Item::WAIT;
  item.id = -1;
  item.link = dep.stream->last_id;
  item.launch = item.ready = launch;
  item.dep = dep;
  push(s, std::move(item));
}

Item &Device::enqueue(Stream &s, Item &&item) {
  if (item.launch < now_) {
    ++progress_.late;
    item.launch = now_;
  }
  item.ready = item.launch + (item.shares() || item.type == Item::COMM ? model_.timing.launch_latency_ns : 0);
  if (s.legacy) {
    for (size_t i = 0, count = busy_.size(); i < count; ++i)  // `s` may join them
      if (busy_[i] != &s && busy_[i]->context == s.context && busy_[i]->blocking)
        enqueue_wait(s, busy_[i]->all(), item.launch);
  } else if (Stream *first = s.context->default_stream; s.blocking && first && !first->queue.empty()) {
    enqueue_wait(s, first->all(), item.launch);
  }
  return push(s, std::move(item));
}

void Device::apply(const Price &price, const Stream &s, Item &item, int part) {
  item.price = price.request.id;
  item.part = part;
  item.priced = true;
  item.profile = price.profile;
  double priced = static_cast<double>(price.durations[std::min(static_cast<size_t>(part), price.durations.size() - 1)]);
  item.work = item.measured == UNTIMED ? priced : static_cast<double>(item.measured) * priced / PH_SAME_TIME;
  if (item.type == Item::KERNEL) item.work *= s.context->rank.slowness;
}

// ------------------------------------------------------------------ time
void Device::advance() {
  dirty_ = false;
  for (;;) {
    int64_t limit = host_limit();
    Next found = next();
    if (hold_ != NEVER) limit = std::min(limit, hold_ - 1);
    if (comm_end_ != NEVER) limit = std::min(limit, comm_end_ - 1);
    if (found.time == NEVER || found.time > limit) {
      if (limit != NEVER && limit > now_) now_ = limit;
      break;
    }
    happen(found);
  }
  for (const Context *c : contexts_) listener_.went_on(c->rank);
}

void Device::happen(const Next &next) {
  progress_.moved = true;
  now_ = next.time;
  power_.advance(now_);
  if (!next.stream) return update_rates();
  Stream &s = *next.stream;
  Item &item = s.queue.front();
  bool passes = item.type == Item::RECORD || item.type == Item::WAIT || item.type == Item::MARK;
  if (item.running && item.type == Item::COMM && item.comm->end < 0)
    fail(s);
  else if (item.running || passes)
    complete(s);
  else if (!await_room(s))
    admit(s);
}

// End of running work, by the rate that it has; NEVER: not known.
inline int64_t Device::end_of(const Item &item) {
  if (item.type == Item::COMM) return item.comm->end;
  if (item.type == Item::HOSTFUNC) return item.start + static_cast<int64_t>(item.work);
  if (item.rate <= 0) return NEVER;
  return item.updated + static_cast<int64_t>(ceil(item.work / item.rate - 1e-6));
}

// When the head of a stream begins or ends; NEVER: that is not known. Notes what may begin or end without our knowing.
inline int64_t Device::time_of(const Stream &s, const Item &item) {
  if (item.running) {
    if (item.type == Item::COMM && item.comm->end < 0) {
      comm_end_ = std::min(comm_end_, item.comm->least_end);
      return item.comm->gives_up;
    }
    return std::max(end_of(item), now_);
  }
  if (s.context->one_queue && item.issued > s.context->next_issued) return NEVER;
  if (item.waits() || (copies_ && item.type == Item::COMM && item.comm->copies)) return NEVER;
  int64_t time = std::max(std::max(s.free_at + (item.shares() ? s.gap : 0), item.ready) + item.delay, now_);
  if (item.priced) return time;
  hold_ = std::min(hold_, time);
  return NEVER;
}

// The first that has not begun, over all streams.
uint64_t Device::next_in_queue(const Context &context) const {
  uint64_t first = UINT64_MAX;
  for (const Stream *s : busy_)
    for (size_t i = 0; i < s->queue.size(); ++i) {
      const Item &item = s->queue[i];
      if (item.running || !item.issued || s->context != &context) continue;
      first = std::min(first, item.issued);
      break;
    }
  return first;
}

Device::Next Device::next() {
  Next best;
  bool best_ends = false;
  hold_ = comm_end_ = NEVER;
  for (Context *c : contexts_)
    if (c->one_queue) c->next_issued = next_in_queue(*c);
  for (Stream *s : busy_) {
    const Item &item = s->queue.front();
    int64_t time = time_of(*s, item);
    // At equal times ends come first; then the order is that of the program, not that in which streams came to be busy.
    bool earlier = time < best.time;
    if (time == best.time && best.stream) {
      int64_t other = best.stream->queue.front().id;
      earlier = item.running != best_ends ? item.running : item.id != other ? item.id < other : s->id < best.stream->id;
    }
    if (!earlier) continue;
    best = {time, s};
    best_ends = item.running;
  }
  if (slices_.next() < best.time) best = {std::max(slices_.next(), now_), nullptr};
  if (best.stream && !best_ends && seeks_room(best.stream->queue.front())) {
    for (const Stream *s : busy_)  // how long it waits for one without a price is not known
      if (!s->queue.front().priced && starts_sooner(*s, *best.stream, best.time)) hold_ = std::min(hold_, best.time);
  }
  return best;
}

// ------------------------------------------------------------------ admission
// ns until the last of the kernels that run and count has ended.
double Device::until_free(const Context &context, bool (*counts)(const Item &)) const {
  double longest = 0;
  for (const Stream *s : busy_) {
    const Item &item = s->queue.front();
    if (!item.running || item.rate <= 0 || !counts(item) || !concurrent(context, *s->context)) continue;
    longest = std::max(longest, item.work / item.rate - static_cast<double>(now_ - item.updated));
  }
  return longest;
}

// True if a communication kernel at the head of its stream still needs room.
bool Device::seeks_room(const Item &item) {
  return item.type == Item::COMM && !item.comm->copies && !item.waited && item.priority >= 0;
}

// True if the head of `s`, which fills the GPU, starts sooner than communication that had its last dependency at
// `time`. Products do not: they begin with a memset. Nor does what is launched later: whether that has been heard of is
// chance.
bool Device::starts_sooner(const Stream &s, const Stream &awaiting, int64_t time) const {
  const Item &item = s.queue.front(), &communication = awaiting.queue.front();
  if (item.running || !fills(item) || product(item) || item.waits() || !concurrent(*s.context, *awaiting.context))
    return false;
  if (item.launch > time || (item.launch == time && item.id > communication.id)) return false;
  return std::max(s.free_at + s.gap, item.ready) <= time + model_.timing.communication_start_ns;
}

double Device::until_free_of_next(const Stream &communication) const {
  double longest = 0;
  for (const Stream *s : busy_) {
    if (!starts_sooner(*s, communication, now_)) continue;
    const Item &item = s->queue.front();
    int64_t start = std::max(s->free_at + s->gap, item.ready);
    longest = std::max(longest, static_cast<double>(start - now_) + item.work);
  }
  return longest;
}

// A communication kernel of ordinary priority comes after all blocks of the kernels that run: those that fill the GPU
// leave no room before their end. So do those that start before it. Sets the moment from which there is some.
bool Device::await_room(Stream &s) {
  Item &item = s.queue.front();
  if (!seeks_room(item)) return false;
  item.waited = true;
  double longest = std::max(until_free(*s.context, fills), until_free_of_next(s));
  if (longest < 1) return false;
  item.ready = now_ + static_cast<int64_t>(longest);
  return true;
}

void Device::admit(Stream &s) {
  Item &item = s.queue.front();
  item.running = true;
  item.start = item.updated = now_;
  item.admitted = ++admissions_;
  if (item.type == Item::COMM && item.comm->copies) {
    copies_ = true;
    listener_.arrived(*item.comm, now_);
  } else if (item.type == Item::COMM) {
    item.first = until_free(*s.context, product) < 1;
    ++communications_;
    ++s.context->communications;
    s.context->rank.communicating = s.context;
    update_rates();
    listener_.arrived(*item.comm, now_);
  } else if (item.type != Item::HOSTFUNC) {
    ++kernels_;
    power_.slow(item, noise_.clock(s.context->rank.index, now_));
    if (item.type == Item::KERNEL) item.work *= s.context->rank.throttled(now_);
    item.work *= noise_.kernel(s.context->rank.index, item.id, item.work);
    item.work *= noise_.drift(s.context->rank.index, now_);
    if (kernels_ == 1 && !communications_ && !slices_.on()) {
      item.rate = 1.0;
      item.begun = true;
      power_.draw_alone(item);
    } else {
      update_rates();
    }
  }
}

// ------------------------------------------------------------------ completion
// The GPU takes longer to go on to a stream's next kernel while two other streams have work, even if that only waits.
// Of what is launched at this very moment it is chance whether it has been heard of.
int64_t Device::gap_after(const Stream &s) const {
  int others = 0;
  for (const Stream *other : busy_)
    others += other != &s && other->queue.front().launch < now_ && concurrent(*s.context, *other->context);
  return others < 2 ? model_.timing.kernel_gap_ns : model_.timing.crowded_gap_ns;
}

void Device::complete(Stream &s) {
  Item item = std::move(s.queue.front());
  s.queue.pop_front();
  ++s.completed;
  int64_t reached = std::min(now_, std::max(s.free_at, item.ready));
  s.free_at = now_;
  if (item.id > 0) s.done_id = item.id;
  // The times of collectives hold their own gaps. An edge between streams of a graph costs what one on a stream does.
  bool of_graph = item.flags & PH_F_GRAPH, waited = item.type == Item::WAIT && now_ > reached;
  if (item.type == Item::COMM || item.type == Item::HOSTFUNC || (waited && !of_graph)) s.gap = 0;
  if (item.shares()) s.gap = of_graph ? model_.timing.graph_gap_ns : gap_after(s);
  if (waited && of_graph) s.gap = model_.timing.graph_gap_ns;
  if (s.queue.empty()) busy_.erase(std::find(busy_.begin(), busy_.end(), &s));
  if (item.shares()) {
    --kernels_;
    update_rates();
  } else if (item.type == Item::COMM && item.comm->copies) {
    copies_ = false;
  } else if (item.type == Item::COMM) {
    --communications_;
    --s.context->communications;
    s.context->interference.forget(first_communication(*s.context));
    update_rates();
  }
  listener_.completed(*this, s, item, reached);
}

// The kernel at the head of `s` gave up waiting: a trap ends the context. Work on the GPU neither goes on nor ends.
void Device::fail(const Stream &s) {
  Context &context = *s.context;
  context.failed = true;
  if (context.rank.failed < 0) context.rank.failed = now_;
  for (const Stream *one : busy_) {
    const Item &item = one->queue.front();
    if (one->context != &context || !item.running) continue;
    kernels_ -= item.shares();
    if (item.type == Item::COMM && item.comm->copies) copies_ = false;
  }
  communications_ -= context.communications;
  context.communications = 0;
  busy_.erase(std::remove_if(busy_.begin(), busy_.end(), [&](const Stream *one) { return one->context == &context; }),
              busy_.end());
  update_rates();
  listener_.failed(*this, s, s.queue.front());
}

void Device::revive(Context &context) {
  if (!context.failed) return;
  context.failed = false;
  context.interference.forget(NEVER);
  for (auto &[id, s] : context.rank.streams) {
    if (s->context != &context) continue;
    s->completed = s->enqueued;
    s->queue.clear();
  }
}

// When the first of the communication kernels that run arrived; NEVER: none does.
int64_t Device::first_communication(const Context &context) const {
  int64_t first = NEVER;
  for (const Stream *s : busy_) {
    const Item &item = s->queue.front();
    if (s->context == &context && item.running && item.type == Item::COMM) first = std::min(first, item.start);
  }
  return first;
}

// ------------------------------------------------------------------ what shares the GPU
// Has the head of `s` kernels for the GPU's SMs, now or when the gap before them is over? Engines copy whichever
// context's slice it is.
bool Device::wants(const Stream &s) const {
  for (size_t i = 0; i < s.queue.size(); ++i) {
    const Item &item = s.queue[i];
    if (item.running) return !on_engine(item);
    if (item.waits() || item.ready + item.delay > now_) return false;
    if (item.shares() || item.type == Item::COMM) return !on_engine(item);
    if (item.type == Item::HOSTFUNC) return false;
  }
  return false;
}

void Device::update_slices() {
  contenders_.clear();
  for (const Context *c : contexts_) {
    bool some = false, interrupted = false;
    for (const Stream *s : busy_) {
      if (s->context != c || !wants(*s)) continue;
      some = true;
      const Item &item = s->queue.front();
      interrupted = interrupted || (item.running && (item.begun || item.type == Item::COMM));
    }
    if (some) contenders_.push_back({c->place, interrupted});
  }
  slices_.update(model_.timing, now_, contenders_);
}

void Device::update_rates() {
  if (slices_.on()) update_slices();
  running_.clear();
  Concurrent concurrent;
  concurrent.sms = model_.gpu->sms;
  for (Stream *s : busy_) {
    Item &item = s->queue.front();
    if (!item.running) continue;
    bool runs = slices_.runs(s->context->place);
    if (runs && item.type == Item::COMM && !item.comm->copies) {
      concurrent.blocks += item.comm->blocks;
      concurrent.nccl = concurrent.nccl || !item.comm->blocks;
      concurrent.earlier = concurrent.earlier || (item.first && !item.comm->blocks);
    }
    if (!item.shares()) continue;
    if (item.rate > 0) item.work = std::max(0.0, item.work - static_cast<double>(now_ - item.updated) * item.rate);
    item.updated = now_;
    item.rate = 0;
    if (runs || on_engine(item)) running_.push_back(&item);
  }
  if (!running_.empty()) share_device(running_, concurrent);
  for (Item *item : running_) {
    if (item->rate <= 0 || item->begun) continue;
    item->begun = true;
    item->start = now_;
  }
  power_.draw(busy_);
  if (!communications_) return;
  for (Context *c : contexts_)
    if (c->communications) slow_communication(*c);
}

// The greediest of the kernels that run counts. Communication of a process with time slices gets its share of the GPU's
// time as if the slices were short.
void Device::slow_communication(Context &context) {
  double share = 0, slice = slices_.on() ? 1.0 / std::max(1, slices_.contenders()) : 1.0;
  for (const Stream *s : busy_) {
    const Item &item = s->queue.front();
    if (item.running && item.type != Item::COMM && item.rate > 0 && concurrent(context, *s->context))
      share = std::max(share, item.profile.communication_slowdown);
  }
  context.interference.slow(now_, slice < 1 ? 1 - (1 - share) * slice : share);
}

}  // namespace phe
