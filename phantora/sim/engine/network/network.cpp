#include "network/network.h"

#include <math.h>

#include <algorithm>
#include <functional>

namespace phn {
namespace {

constexpr double UNIT = static_cast<double>(1LL << FRACTION);
constexpr int64_t FASTEST = 1LL << 61;    // 131 TB/s
constexpr int64_t SLACK = 1024;           // an end may lie 1/SLACK ns before the true one
constexpr size_t SMALL = 16;              // components up to this size are split after every end
constexpr int64_t SIMILAR = 64;             // rates that differ by less than capacity / SIMILAR are one stretch

int64_t to_rate(double bytes_per_s) {
  double units = bytes_per_s * 1e-9 * UNIT;
  return units >= static_cast<double>(FASTEST) ? FASTEST : std::max<int64_t>(1, static_cast<int64_t>(units));
}
double to_bandwidth(int64_t rate) { return static_cast<double>(rate) / UNIT * 1e9; }
double to_bytes(Wide amount) { return static_cast<double>(amount) / UNIT; }

// ceil(left / rate - 1 / SLACK), at least 1. The quotient in floating point is off by little; then exact.
int64_t duration(Wide left, int64_t rate) {
  left -= rate / SLACK;
  double estimate = static_cast<double>(left) / static_cast<double>(rate);
  if (estimate > 4e18) return NEVER;
  int64_t ns = std::max<int64_t>(1, static_cast<int64_t>(estimate));
  while (static_cast<Wide>(ns) * rate < left) ++ns;
  while (ns > 1 && static_cast<Wide>(ns - 1) * rate >= left) --ns;
  return ns;
}

template <typename T>
void erase_unordered(std::vector<T> &v, T value) {
  auto it = std::find(v.begin(), v.end(), value);
  *it = v.back();
  v.pop_back();
}

}  // namespace

// ------------------------------------------------------------------ links
int Network::add_link(double bandwidth, int scope) {
  Link link;
  link.nominal = bandwidth;
  link.capacity = to_rate(bandwidth);
  link.scope = -1;
  links_.push_back(std::move(link));
  room_.emplace_back();
  set_scope(static_cast<int>(links_.size()) - 1, scope);
  return static_cast<int>(links_.size()) - 1;
}

void Network::set_scope(int link, int scope) {
  if (static_cast<int>(scopes_.size()) <= scope) {
    scopes_.resize(static_cast<size_t>(scope) + 1);
    horizons_.resize(static_cast<size_t>(scope) + 1, NEVER);
  }
  int &own = links_[link].scope;
  if (own >= 0) scopes_[own].erase(std::find(scopes_[own].begin(), scopes_[own].end(), link));
  scopes_[scope].push_back(link);
  own = scope;
}

void Network::change(int link, int64_t time, double bandwidth) {
  Link &l = links_[link];
  auto after =
      std::upper_bound(l.changes.begin(), l.changes.end(), time, [](int64_t t, const auto &c) { return t < c.first; });
  l.changes.insert(after, {time, to_rate(bandwidth)});
  if (l.component < 0) return;
  components_[l.component].changes = true;
  schedule(components_[l.component]);
  changed_.push_back(l.component);
}

int64_t Network::capacity(const Link &link) {
  int64_t value = link.capacity;
  for (auto &[from, then] : link.changes) {
    if (from > link.now) break;
    value = then;
  }
  return value;
}

// ------------------------------------------------------------------ components
int Network::fresh_component() {
  if (free_components_.empty()) {
    components_.emplace_back();
    return static_cast<int>(components_.size()) - 1;
  }
  int c = free_components_.back();
  free_components_.pop_back();
  return c;
}

void Network::dissolve(int component) {
  Component &k = components_[component];
  k.flows.clear();
  k.links.clear();
  k.next = k.horizon = NEVER;
  k.whole = k.gone = 0;
  k.changes = false;
  free_components_.push_back(component);
}

void Network::add_to(int component, int32_t link) {
  Component &k = components_[component];
  Link &l = links_[link];
  l.component = component;
  k.links.push_back(link);
  k.horizon = std::min(k.horizon, horizons_[l.scope]);
  k.changes = k.changes || !l.changes.empty();
}

void Network::put(int component, int32_t flow) {
  Component &k = components_[component];
  flows_[flow].component = component;
  flows_[flow].place = static_cast<int32_t>(k.flows.size());
  k.flows.push_back(flow);
}

void Network::join(int into, int from) {
  Component &k = components_[from];
  for (int32_t f : k.flows) put(into, f);
  for (int32_t l : k.links) links_[l].component = into;
  Component &whole = components_[into];
  whole.links.insert(whole.links.end(), k.links.begin(), k.links.end());
  whole.horizon = std::min(whole.horizon, k.horizon);
  whole.changes = whole.changes || k.changes;
  dissolve(from);
  changed_.push_back(from);
}

// The earliest thing that is known to happen.
void Network::schedule(Component &k) {
  int64_t next = NEVER;
  for (int32_t f : k.flows) next = std::min(next, hot_[f].started ? flows_[f].end : flows_[f].start);
  if (k.changes) {
    k.changes = false;
    for (int32_t l : k.links)
      for (auto &[time, then] : links_[l].changes) {
        if (time <= links_[l].now) continue;
        next = std::min(next, time);
        k.changes = true;
        break;
      }
  }
  k.next = next;
}

// Ends may have cut a component into several.
void Network::split(int component, int64_t time) {
  parts_.assign(1, component);
  Component &whole = components_[component];
  if (whole.flows.size() > SMALL && 2 * whole.gone < whole.whole) return;  // not at every end: that would be quadratic
  std::vector<int32_t> flows = std::move(whole.flows), links = std::move(whole.links);
  for (int32_t l : links) {
    links_[l].parent = l;
    links_[l].component = -1;
  }
  auto root = [&](int32_t l) {
    while (links_[l].parent != l) l = links_[l].parent = links_[links_[l].parent].parent;
    return l;
  };
  for (int32_t f : flows)
    for (int32_t i = 1; i < hot_[f].hops; ++i) links_[root(hot_[f].links[i])].parent = root(hot_[f].links[0]);
  dissolve(component);  // its number goes to the first part
  parts_.clear();
  for (int32_t f : flows) {
    int32_t top = hot_[f].hops ? root(hot_[f].links[0]) : -1;
    int part = top < 0 ? -1 : links_[top].component;
    if (part < 0) {
      part = fresh_component();
      parts_.push_back(part);
      if (top >= 0) add_to(part, top);
    }
    put(part, f);
  }
  for (int32_t l : links) {
    int32_t top = root(l);
    if (top == l) continue;
    if (links_[top].component >= 0) add_to(links_[top].component, l);
  }
  for (int32_t l : links) {
    links_[l].now = std::max(links_[l].now, time);
    if (watched_ && links_[l].component < 0) carries(links_[l], time, 0);
  }
  for (int part : parts_) components_[part].whole = components_[part].flows.size();
}

// ------------------------------------------------------------------ rates
void Network::set_rate(int32_t flow, int64_t rate, int64_t time) {
  Hot &hot = hot_[flow];
  Flow &f = flows_[flow];
  if (f.endless) {
    hot.rate = rate;
    return;
  }
  f.left -= static_cast<Wide>(hot.rate) * (time - f.updated);
  f.updated = time;
  hot.rate = rate;
  int64_t ns = duration(f.left, rate);
  f.end = ns > NEVER - time ? NEVER : time + ns;
}

// Progressive filling. A link's share is what it has left over the flows that have no rate yet;
// shares only grow as flows get their rates, so the link of the smallest share decides the rates of its flows.
void Network::solve(Component &k, int64_t time) {
  heap_.clear();
  for (int32_t index : k.links) {
    Link &l = links_[index];
    l.now = std::max(l.now, time);
    room_[index] = {capacity(l), l.started};
    if (l.started) heap_.emplace_back(room_[index].residual / l.started, index);
  }
  auto later = std::greater<std::pair<int64_t, int32_t>>();
  std::make_heap(heap_.begin(), heap_.end(), later);
  ++epoch_;
  auto fix = [&](int32_t f, int64_t rate) {
    Hot &hot = hot_[f];
    hot.epoch = epoch_;
    for (int32_t i = 0; i < hot.hops; ++i) {
      Room &room = room_[hot.links[i]];
      room.residual -= rate * hot.count;
      room.open -= hot.count;
    }
    if (rate != hot.rate) set_rate(f, rate, time);
  };
  while (!heap_.empty()) {
    auto [share, index] = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
    const Room &room = room_[index];
    if (!room.open) continue;
    int64_t now = room.residual / room.open;
    if (now == share) {
      last_.clear();
      bool capped = false;
      for (int32_t f : links_[index].flows) {
        Hot &hot = hot_[f];
        if (hot.epoch == epoch_ || !hot.started) continue;
        if (hot.cap <= share) {
          fix(f, hot.cap);
          capped = true;
        } else {
          last_.push_back(f);
        }
      }
      if (!capped) {
        for (int32_t f : last_) fix(f, share);
        continue;
      }
      if (!room.open) continue;
      now = room.residual / room.open;
    }
    heap_.emplace_back(now, index);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  if (!watched_) return;
  for (int32_t index : k.links) carries(links_[index], time, capacity(links_[index]) - room_[index].residual);
}

// ------------------------------------------------------------------ activities
int64_t alone(const std::vector<FlowClass> &classes) {
  int64_t longest = 0;
  for (const FlowClass &c : classes)
    longest = std::max(longest, duration(static_cast<Wide>(c.bytes * UNIT), to_rate(c.rate)));
  return longest;
}

int64_t Network::earliest(const FlowClass *classes, int count) const {
  int64_t time = 0;
  for (int i = 0; i < count; ++i)
    for (int32_t h = 0; h < classes[i].hops; ++h) time = std::max(time, links_[classes[i].links[h]].now);
  return time;
}

int Network::begin(int64_t start, const FlowClass *classes, int count, int64_t tag) {
  int number;
  if (free_activities_.empty()) {
    number = static_cast<int>(activities_.size());
    activities_.emplace_back();
  } else {
    number = free_activities_.back();
    free_activities_.pop_back();
  }
  Activity &a = activities_[number];
  a.tag = tag;
  a.open = count;
  a.closed = false;
  a.flows.clear();
  parts_.clear();
  for (int i = 0; i < count; ++i) {
    const FlowClass &c = classes[i];
    int32_t index;
    if (free_flows_.empty()) {
      index = static_cast<int32_t>(flows_.size());
      flows_.emplace_back();
      hot_.emplace_back();
    } else {
      index = free_flows_.back();
      free_flows_.pop_back();
    }
    a.flows.push_back(index);
    Flow f;
    f.start = start;
    f.activity = number;
    f.index = i;
    f.endless = isinf(c.bytes);
    f.left = f.endless ? 0 : static_cast<Wide>(c.bytes * UNIT);
    Hot hot;
    hot.cap = to_rate(c.rate);
    hot.count = std::max(1, c.count);
    hot.epoch = epoch_;
    hot.hops = c.hops;
    hot.links = c.links;
    hot_[index] = hot;
    flows_[index] = f;
    int into = -1;
    for (int32_t h = 0; h < c.hops; ++h) {
      int other = links_[c.links[h]].component;
      if (other < 0 || other == into) continue;
      if (into < 0) {
        into = other;
      } else {
        bool larger = components_[other].flows.size() > components_[into].flows.size();
        if (larger) std::swap(into, other);
        join(into, other);
      }
    }
    if (into < 0) into = fresh_component();
    for (int32_t h = 0; h < c.hops; ++h) {
      if (links_[c.links[h]].component < 0) add_to(into, c.links[h]);
      links_[c.links[h]].flows.push_back(index);
    }
    put(into, index);
    Component &k = components_[into];
    k.whole = std::max(k.whole, k.flows.size());
    parts_.push_back(into);
  }
  std::sort(parts_.begin(), parts_.end());
  parts_.erase(std::unique(parts_.begin(), parts_.end()), parts_.end());
  for (int c : parts_) {
    schedule(components_[c]);
    changed_.push_back(c);
    if (components_[c].horizon != NEVER) close_flows(components_[c]);
  }
  return number;
}

void Network::step(int component, std::vector<Ended> &ended) {
  int64_t time = components_[component].next;
  Component &k = components_[component];
  over_.clear();
  for (int32_t f : k.flows) {
    Hot &hot = hot_[f];
    if (!hot.started) {
      if (flows_[f].start > time) continue;
      hot.started = true;
      flows_[f].updated = time;
      for (int32_t i = 0; i < hot.hops; ++i) links_[hot.links[i]].started += hot.count;
      if (!hot.hops) set_rate(f, hot.cap, time);
    } else if (flows_[f].end <= time) {
      over_.push_back(f);
    }
  }
  size_t first = ended.size();
  for (int32_t f : over_) {
    Hot &hot = hot_[f];
    for (int32_t i = 0; i < hot.hops; ++i) {
      Link &l = links_[hot.links[i]];
      l.started -= hot.count;
      erase_unordered(l.flows, f);
    }
    int32_t place = flows_[f].place;
    k.flows[place] = k.flows.back();
    flows_[k.flows[place]].place = place;
    k.flows.pop_back();
    Activity &a = activities_[flows_[f].activity];
    bool last = --a.open == 0;
    ended.push_back({a.tag, flows_[f].index, last, flows_[f].start, time});
    a.flows[flows_[f].index] = -1;
    if (last) free_activities_.push_back(flows_[f].activity);
    free_flows_.push_back(f);
    hot.started = false;
  }
  k.gone += over_.size();
  std::sort(ended.begin() + static_cast<long>(first), ended.end(),
            [](const Ended &a, const Ended &b) { return a.tag != b.tag ? a.tag < b.tag : a.index < b.index; });
  // If several classes of one activity end now, the last in order reports the end.
  for (size_t i = first; i + 1 < ended.size(); ++i)
    if (ended[i].tag == ended[i + 1].tag) {
      ended[i + 1].last = ended[i + 1].last || ended[i].last;
      ended[i].last = false;
    }
  changed_.push_back(component);
  if (over_.empty())
    parts_.assign(1, component);
  else
    split(component, time);
  for (int part : parts_) {
    solve(components_[part], time);
    schedule(components_[part]);
    changed_.push_back(part);
  }
}

int64_t Network::next() const {
  int64_t least = NEVER;
  for (const Component &k : components_) least = std::min(least, k.next);
  return least;
}

double Network::rate(int activity, int index) const {
  int32_t f = activities_[activity].flows[index];
  return f < 0 || !hot_[f].started ? 0.0 : to_bandwidth(hot_[f].rate);
}

int Network::component(int activity, int index) const {
  int32_t f = activities_[activity].flows[index];
  return f < 0 ? -1 : flows_[f].component;
}

// ------------------------------------------------------------------ horizons
void Network::close(int scope, int64_t time) {
  if (horizons_[scope] <= time) return;
  horizons_[scope] = time;
  if (scopes_[scope].size() == links_.size()) {  // of all links, most of which carry nothing (folded runs)
    for (Component &k : components_) {
      if (k.links.empty() || k.horizon <= time) continue;
      k.horizon = time;
      close_flows(k);
    }
    return;
  }
  for (int32_t link : scopes_[scope]) {
    int c = links_[link].component;
    if (c < 0 || components_[c].horizon <= time) continue;
    components_[c].horizon = time;
    close_flows(components_[c]);
  }
}

void Network::close_flows(const Component &k) {
  for (int32_t f : k.flows) {
    Activity &a = activities_[flows_[f].activity];
    if (a.closed || a.tag < 0) continue;
    a.closed = true;
    closed_.push_back(a.tag);
  }
}

void Network::open() {
  std::fill(horizons_.begin(), horizons_.end(), NEVER);
  for (Component &k : components_) k.horizon = NEVER;
  for (Activity &a : activities_) a.closed = false;
  closed_.clear();
}

// ------------------------------------------------------------------ what links carry
void Network::carries(Link &link, int64_t time, int64_t flow) {
  if (flow == link.flow) return;
  if (time > link.since) {
    finalize(static_cast<int32_t>(&link - links_.data()), busy_);
    link.carried += static_cast<Wide>(link.flow) * (time - link.since);
    link.since = time;
  }
  link.flow = flow;
}

// The rate from `since` on is known: does it go on as before, or is a stretch over?
void Network::finalize(int32_t index, std::vector<Busy> &out) {
  Link &l = links_[index];
  if (l.from == l.since) return;
  int64_t mean = static_cast<int64_t>(l.carried / (l.since - l.from));
  int64_t apart = mean > l.flow ? mean - l.flow : l.flow - mean;
  if (apart <= l.capacity / SIMILAR && (l.flow > 0) == (mean > 0)) return;
  if (l.carried > 0) out.push_back({index, l.from, l.since, to_bytes(l.carried)});
  l.from = l.since;
  l.carried = 0;
}

void Network::stop(int64_t time) {
  for (Link &link : links_) carries(link, std::max(time, link.since), 0);
}

void Network::take_busy(int64_t until, std::vector<Busy> &out) {
  for (size_t i = 0; i < links_.size(); ++i)
    if (links_[i].since < until) finalize(static_cast<int32_t>(i), busy_);
  out.insert(out.end(), busy_.begin(), busy_.end());
  busy_.clear();
}

}  // namespace phn
