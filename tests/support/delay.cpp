// Connections with a delay: `delay MICROSECONDS` reads ports of this machine, one a line, and prints for each another
// port that leads to it. What passes there comes so much later, in either direction; nothing else is limited.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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
    std::vector<char> buffer(1 << 20);
    for (ssize_t got = 1; got > 0;) {
      got = recv(from, buffer.data(), buffer.size(), 0);
      std::lock_guard<std::mutex> lock(mutex);
      pieces.push_back({now() + delay_ns, std::string(buffer.data(), got > 0 ? static_cast<size_t>(got) : 0)});
      come.notify_one();
    }
  }

  void pass() {
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

int main(int, char **arguments) {
  delay_ns = atoll(arguments[1]) * 1000;
  for (int port; scanf("%d", &port) == 1;) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = here(0);
    socklen_t length = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr *>(&address), length) || listen(listener, 4096)) return 1;
    getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length);
    std::thread([listener, port] {
      for (;;)
        if (int link = accept(listener, nullptr, nullptr); link >= 0) connect_through(link, port);
    }).detach();
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
  }
  return 0;
}
