// The relay's part of the C interface of phantora/wire/engine.py.
#include "relay/mirror.h"
#include "relay/node.h"

using phr::Mirror;
using phr::Node;
using phr::Relay;

namespace {
Relay &relay_of(void *relay) { return *static_cast<Relay *>(relay); }
}  // namespace

void *phr_mirror(void *area) { return static_cast<Relay *>(new Mirror(area)); }
void phr_add_node(void *relay, int socket, const int32_t *ranks, int count) {
  static_cast<Mirror &>(relay_of(relay)).add(socket, {ranks, ranks + count});
}
void phr_start(void *relay) { static_cast<Mirror &>(relay_of(relay)).start(); }
void *phr_follow(void *area, int node, int socket, const int32_t *ranks, int count) {
  return static_cast<Relay *>(new Node(area, node, socket, {ranks, ranks + count}));
}
int phr_lost(void *relay) { return relay_of(relay).lost(); }
void phr_traffic(void *relay, int64_t *out) {
  phr::Traffic now = relay_of(relay).traffic();
  out[0] = now.sent;
  out[1] = now.received;
  out[2] = now.messages_sent;
  out[3] = now.messages_received;
}
void phr_close(void *relay) { delete &relay_of(relay); }
