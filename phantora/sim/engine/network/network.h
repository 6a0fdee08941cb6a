// The network: flows that share directed links by max-min fairness, in exact arithmetic.
//
// An activity (a collective, a transfer) is a set of flow classes that start together; it has ended
// when its last class has. A class is `count` equal flows over the same links, each of them with a
// number of bytes and a rate that it never exceeds. Between two events all rates are constant: the
// largest that give no flow more than its cap and no link more than it carries, and that can be
// raised for no flow without lowering a slower one (progressive filling).
//
// Flows that share no link, directly or through others, do not know of each other: each connected
// component has a clock of its own and is solved anew only when something in it changes.
//
// Rates and amounts are integers (2^-44 bytes per ns, 2^-44 bytes). Sums of integers do not depend
// on their order, so neither does any result; and no link ever carries more than it can. The
// one rounding of time: an end is the next whole nanosecond, unless it passes a whole one by less
// than 1/1024 ns (what is left of a cap that was computed in floating point).
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <utility>
#include <vector>

namespace phn {

__extension__ typedef __int128 Wide;

constexpr int64_t NEVER = INT64_MAX;
constexpr int FRACTION = 44;  // binary digits of bytes and of bytes per ns

struct FlowClass {
  int32_t src, dst;      // GPUs, for the log; -1: several
  const int32_t *links;  // kept by the caller for as long as the activity lasts
  int32_t hops;
  int32_t count;
  double bytes, rate;    // of each of the `count` flows; rate in bytes/s. Infinite bytes: never ends
};

// ns that they take when they have their links to themselves.
int64_t alone(const std::vector<FlowClass> &classes);

struct Ended {  // a flow class that is over
  int64_t tag;
  int32_t index;  // among the classes of its activity
  bool last;      // nothing of the activity is left
  int64_t start, end;
};

struct Busy {  // a stretch of a link's life
  int32_t link;
  int64_t start, end;
  double bytes;  // carried in it
};

class Network {
 public:
  // `scope` names the ranks that can use the link (for close()). Links are numbered from 0.
  int add_link(double bandwidth, int scope);
  void set_scope(int link, int scope);  // not between open() and what follows it
  int links() const { return static_cast<int>(links_.size()); }
  // From `time` on, the link carries `bandwidth` bytes/s. Nothing of its component may be later than `time`.
  void change(int link, int64_t time, double bandwidth);
  double bandwidth(int link) const { return links_[link].nominal; }
  // Keep what links carry over time, for take_busy().
  void watch_links() { watched_ = true; }

  // No flow over these links can start before: what happened on them until then is final.
  int64_t earliest(const FlowClass *classes, int count) const;
  // Flows from `start` on, which must not be before earliest(). `tag` comes back with each class that ends (a
  // negative one does not). Returns the activity's number, which is reused after its end.
  int begin(int64_t start, const FlowClass *classes, int count, int64_t tag);

  // Components are numbered from 0; some numbers are free and have no next event.
  int components() const { return static_cast<int>(components_.size()); }
  int64_t next(int component) const { return components_[component].next; }
  int64_t next() const;  // of all
  // Processes all events at next(component); ended classes go to `ended`, in order of (tag, index).
  void step(int component, std::vector<Ended> &ended);
  // Components with a next event that may be another than at the last call.
  void take_changed(std::vector<int> &out) {
    out.clear();
    std::swap(out, changed_);
  }

  // A component is unknown after its horizon, because ranks may add traffic from then on.
  // close() marks all links of a scope so; open() forgets all marks. take_closed() gives the
  // activities in components with a horizon since open().
  int64_t horizon(int component) const { return components_[component].horizon; }
  void close(int scope, int64_t time);
  void open();
  void take_closed(std::vector<int64_t> &tags) {
    tags.clear();
    std::swap(tags, closed_);
  }

  double rate(int activity, int index) const;  // bytes/s now, of each flow of the class
  int component(int activity, int index) const;

  // Nothing happens on any link from `time` on.
  void stop(int64_t time);
  // Stretches of watched links that lie before `until`; nothing can change there any more.
  void take_busy(int64_t until, std::vector<Busy> &out);

 private:
  struct Link {
    int64_t capacity = 0;
    double nominal = 0;  // bytes/s before any change
    int scope = 0;
    int component = -1;
    std::vector<int32_t> flows;                          // started or not, not yet ended
    std::vector<std::pair<int64_t, int64_t>> changes;    // (time, capacity), by time
    int64_t now = 0;                                     // solved up to
    int64_t started = 0;                                 // flows that run, by count
    int32_t parent = -1;                                 // scratch of split()
    // Its load: closed stretch [from, since), then `flow` from `since` on.
    int64_t from = 0, since = 0, flow = 0;
    Wide carried = 0;
  };
  struct Room {  // scratch of solve(): what a link has left for the flows without a rate yet
    int64_t residual = 0, open = 0;
  };
  struct Hot {  // what solve() reads of a flow
    int64_t cap = 0, rate = 0;
    int64_t count = 1;
    uint32_t epoch = 0;
    int32_t hops = 0;
    const int32_t *links = nullptr;
    bool started = false;
  };
  struct Flow {
    Wide left = 0;
    int64_t updated = 0, start = 0, end = NEVER;
    int32_t activity = -1, index = 0, component = -1, place = 0;
    bool endless = false;
  };
  struct Activity {
    int64_t tag = 0;
    int32_t open = 0;
    bool closed = false;
    std::vector<int32_t> flows;
  };
  struct Component {
    std::vector<int32_t> flows, links;
    int64_t next = NEVER, horizon = NEVER;
    size_t whole = 0;  // flows when it was last found to be connected
    size_t gone = 0;   // ended since
    bool changes = false;  // some link has changes ahead
  };

  static int64_t capacity(const Link &link);
  int fresh_component();
  void join(int into, int from);
  void add_to(int component, int32_t link);
  void put(int component, int32_t flow);
  void solve(Component &k, int64_t time);
  void set_rate(int32_t flow, int64_t rate, int64_t time);
  void schedule(Component &k);
  void split(int component, int64_t time);  // its parts in parts_
  void dissolve(int component);
  void close_flows(const Component &k);
  void carries(Link &link, int64_t time, int64_t flow);
  void finalize(int32_t link, std::vector<Busy> &out);

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<Hot> hot_;
  std::vector<int32_t> free_flows_, free_activities_, free_components_;
  std::vector<Activity> activities_;
  std::vector<Component> components_;
  std::vector<int> changed_;
  std::vector<int64_t> closed_;
  std::vector<std::vector<int32_t>> scopes_;  // links by scope
  std::vector<int64_t> horizons_;             // by scope
  std::vector<std::pair<int64_t, int32_t>> heap_;  // scratch of solve(): share, link
  std::vector<Room> room_;                         // by link
  std::vector<int32_t> last_;                      // scratch of solve()
  std::vector<int32_t> over_;                      // scratch of step()
  std::vector<int> parts_;                         // scratch of step(), touched components of begin()
  std::vector<Busy> busy_;
  uint32_t epoch_ = 0;
  bool watched_ = false;
};

}  // namespace phn
