// Connections with a delay: `delay MICROSECONDS` reads ports of this machine, one a line, and prints for each another
// port that leads to it. What passes there comes so much later, in either direction; nothing else is limited.
#include "time/slices.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

static int64_t delay_ns;

static int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static sockaddr_in here(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

struct Piece {
  int64_t due;
  std::string data;  // empty: the end
};

// One direction of a connection: a thread takes what comes, another one sends it on when it is due.
struct Way {
  int from, to;
  std::mutex mutex;
  std::condition_variable come;
  std::deque<Piece> pieces;

  void take() {
    phe::prefer_short_slices();
    std::vector<char> buffer(1 << 20);
    for (ssize_t got = 1; got > 0;) {
      got = recv(from, buffer.data(), buffer.size(), 0);
      std::lock_guard<std::mutex> lock(mutex);
      pieces.push_back({now() + delay_ns, std::string(buffer.data(), got > 0 ? static_cast<size_t>(got) : 0)});
      come.notify_one();
    }
  }

  void pass() {
    phe::prefer_short_slices();
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      come.wait(lock, [&] { return !pieces.empty(); });
      Piece piece = std::move(pieces.front());
      pieces.pop_front();
      lock.unlock();
      timespec due{piece.due / 1000000000, piece.due % 1000000000};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr);
      size_t at = 0;
      for (ssize_t done = 0; at < piece.data.size(); at += static_cast<size_t>(done)) {
        done = send(to, piece.data.data() + at, piece.data.size() - at, MSG_NOSIGNAL);
        if (done <= 0) break;
      }
      if (piece.data.empty() || at < piece.data.size()) {
        shutdown(to, SHUT_WR);
        return;
      }
    }
  }
};

static void connect_through(int accepted, int port) {
  int link = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  sockaddr_in address = here(port);
  if (connect(link, reinterpret_cast<sockaddr *>(&address), sizeof address)) {
    close(link);
    close(accepted);
    return;
  }
  for (int end : {accepted, link}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  for (auto [from, to] : {std::pair{accepted, link}, std::pair{link, accepted}}) {
    Way *way = new Way{from, to, {}, {}, {}};  // as long as the process
    std::thread(&Way::take, way).detach();
    std::thread(&Way::pass, way).detach();
  }
}

// A port that leads to `port`.
static int way_to(int port) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = here(0);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr *>(&address), length) || listen(listener, 4096)) exit(1);
  getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length);
  std::thread([listener, port] {
    for (;;)
      if (int link = accept(listener, nullptr, nullptr); link >= 0) connect_through(link, port);
  }).detach();
  return ntohs(address.sin_port);
}

// Median time of a byte to `port` and back, ns.
static int64_t round_trip(int port) {
  int link = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  sockaddr_in address = here(port);
  if (connect(link, reinterpret_cast<sockaddr *>(&address), sizeof address)) exit(1);
  setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  std::vector<int64_t> times;
  for (char byte = 0; times.size() < 101;) {
    int64_t began = now();
    if (send(link, &byte, 1, 0) != 1 || recv(link, &byte, 1, 0) != 1) exit(1);
    times.push_back(now() - began);
  }
  close(link);
  std::nth_element(times.begin(), times.begin() + 50, times.end());
  return times[50];
}

// What this program itself adds to a message, ns: a part of the delay.
static int64_t own_delay() {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = here(0);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr *>(&address), length) || listen(listener, 2)) exit(1);
  getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length);
  std::thread([listener] {
    for (;;) {
      int link = accept(listener, nullptr, nullptr), one = 1;
      setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      for (char byte; recv(link, &byte, 1, 0) == 1;)
        if (send(link, &byte, 1, MSG_NOSIGNAL) != 1) break;
      close(link);
    }
  }).detach();
  int port = ntohs(address.sin_port);
  return std::max<int64_t>(0, (round_trip(way_to(port)) - round_trip(port)) / 2);
}

int main(int, char **arguments) {
  int64_t wanted = atoll(arguments[1]) * 1000;
  delay_ns = std::max<int64_t>(0, wanted - own_delay());
  for (int port; scanf("%d", &port) == 1;) {
    printf("%d\n", way_to(port));
    fflush(stdout);
  }
  return 0;
}
