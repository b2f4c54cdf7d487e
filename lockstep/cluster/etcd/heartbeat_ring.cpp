#include "lockstep/cluster/etcd/heartbeat_ring.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/proof.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kMagic = "lockstep ring 1\n";
constexpr std::size_t kHelloBytes = kMagic.size() + 4 + kNonceBytes;
constexpr std::size_t kProofBytes = 32;
constexpr char kBeat = 'b';
constexpr char kGoodbye = 'q';
// Strangers may not use up descriptors.
constexpr std::size_t kMostLinks = 64;

struct Sockaddr {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Sockaddr sockaddr_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    fail<CommError>("[heartbeats] \"{}\" is no address: {}", host, gai_strerror(error));
  Sockaddr address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

}  // namespace

struct HeartbeatRing::Link {
  enum class State { Connecting, Hello, Proof, Up, Over };
  int fd = -1;
  bool outgoing = false;
  int peer = -1;
  State state = State::Hello;
  std::string connector_nonce = {};
  std::string listener_nonce = {};
  std::string in = {};
  Time heard{};
  Time next_beat{};

  ~Link() { close(); }
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
    state = State::Over;
  }
};

HeartbeatRing::HeartbeatRing(HeartbeatRingOptions options) : options_(std::move(options)) {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int error = wake_ < 0 ? errno : EADDRINUSE;
  for (int port = options_.ports.low;
       wake_ >= 0 && error == EADDRINUSE && port <= options_.ports.high; ++port) {
    error = listen_at(port);
  }
  if (error == 0) return;
  if (wake_ >= 0) ::close(wake_);
  fail<CommError>("[heartbeats] cannot listen at {}{}: {}", options_.host,
                  options_.ports.any()
                      ? std::string()
                      : fmt::format(", port {} to {}", options_.ports.low, options_.ports.high),
                  std::strerror(error));
}

// Returns errno, or 0.
int HeartbeatRing::listen_at(int port) {
  const Sockaddr address = sockaddr_of(options_.host, port);
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (fd < 0 || bind(fd, address.get(), address.size) != 0 || listen(fd, 16) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return error;
  }
  listener_ = fd;
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return 0;
}

HeartbeatRing::~HeartbeatRing() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
    thread_.join();
  }
  ::close(listener_);
  ::close(wake_);
}

void HeartbeatRing::start(Start start) {
  start_ = std::move(start);
  if (start_.members.size() < 2) return;
  thread_ = std::thread([this] { loop(); });
}

void HeartbeatRing::say_goodbye() {
  goodbye_ = true;
}

void HeartbeatRing::loop() {
  connect_next();
  const Clock::duration nap =
      std::max<Clock::duration>(options_.timeout / 8, std::chrono::milliseconds(5));
  Time before = Clock::now();
  while (true) {
    std::vector<pollfd> polled{{.fd = wake_, .events = POLLIN, .revents = 0},
                               {.fd = listener_, .events = POLLIN, .revents = 0}};
    for (const auto& link : links_) {
      const bool connecting = link->state == Link::State::Connecting;
      polled.push_back({.fd = link->fd,
                        .events = static_cast<short>(connecting ? POLLOUT : POLLIN),
                        .revents = 0});
    }
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(nap).count();
    poll(polled.data(), polled.size(), static_cast<int>(wait));
    if (polled[0].revents != 0) break;
    const Time now = Clock::now();
    // Where this process itself stood still, the others were not silent: nobody listened to them.
    if (now - before > options_.timeout / 2) {
      for (const auto& link : links_) link->heard = std::min(now, link->heard + (now - before));
    }
    before = now;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (polled[i + 2].revents != 0) arrived(*links_[i]);
      look_at_clock(*links_[i], now);
    }
    if (polled[1].revents != 0) accept_one();
    std::erase_if(links_, [](const auto& link) { return link->state == Link::State::Over; });
  }
  for (const auto& link : links_) {
    if (goodbye_ && link->state == Link::State::Up) send(*link, std::string(1, kGoodbye));
  }
  links_.clear();
}

void HeartbeatRing::connect_next() {
  auto link = std::make_unique<Link>();
  link->outgoing = true;
  link->peer = (start_.worker + 1) % static_cast<int>(start_.members.size());
  link->state = Link::State::Connecting;
  link->connector_nonce = make_nonce();
  link->heard = Clock::now();
  const Member& member = start_.members[static_cast<std::size_t>(link->peer)];
  try {
    const Sockaddr address = sockaddr_of(member.address, member.port);
    link->fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0 ||
        (connect(link->fd, address.get(), address.size) != 0 && errno != EINPROGRESS)) {
      lose(*link, FailureCause::Silent, fmt::format("cannot be reached: {}", std::strerror(errno)));
    }
  } catch (const CommError& error) {
    lose(*link, FailureCause::Silent, error.what());
  }
  if (link->state != Link::State::Over) links_.push_back(std::move(link));
}

void HeartbeatRing::accept_one() {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  auto link = std::make_unique<Link>();
  link->fd = fd;
  link->heard = Clock::now();
  if (links_.size() < kMostLinks) links_.push_back(std::move(link));
}

void HeartbeatRing::arrived(Link& link) {
  if (link.state == Link::State::Connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(link.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    // Nobody listens there any more, or ended before it took the connection.
    if (error == ECONNREFUSED || error == ECONNRESET)
      return lose(link, FailureCause::Ended, "has ended");
    if (error != 0) {
      return lose(link, FailureCause::Silent,
                  fmt::format("cannot be reached: {}", std::strerror(error)));
    }
    link.state = Link::State::Hello;
    const int on = 1;
    setsockopt(link.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::uint32_t from = htonl(static_cast<std::uint32_t>(start_.worker));
    std::string hello(kMagic);
    hello.append(reinterpret_cast<const char*>(&from), sizeof from);
    return send(link, hello + link.connector_nonce);
  }
  std::array<char, 256> part;
  const ssize_t got = recv(link.fd, part.data(), part.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return lose(link, FailureCause::Ended, "has ended");
  link.heard = Clock::now();
  link.in.append(part.data(), static_cast<std::size_t>(got));
  handshake(link);
  if (link.state != Link::State::Up) return;
  if (link.in.find(kGoodbye) != std::string::npos) return link.close();
  link.in.clear();
}

// The connector says hello with its nonce, the listener answers with its own and its proof, and the
// connector proves itself.
void HeartbeatRing::handshake(Link& link) {
  const auto workers = static_cast<int>(start_.members.size());
  if (link.outgoing && link.state == Link::State::Hello) {
    if (link.in.size() < kNonceBytes + kProofBytes) return;
    link.listener_nonce = link.in.substr(0, kNonceBytes);
    if (!is_proof(link.in.substr(kNonceBytes, kProofBytes), start_.key, Prover::Server,
                  subject(link))) {
      return lose(link, FailureCause::Ended,
                  "has been replaced by a program that does not know this job's secret");
    }
    link.in.erase(0, kNonceBytes + kProofBytes);
    link.state = Link::State::Up;
    return send(link, prove(start_.key, Prover::Worker, subject(link)));
  }
  if (!link.outgoing && link.state == Link::State::Hello) {
    if (link.in.size() < kHelloBytes) return;
    std::uint32_t from = 0;
    std::memcpy(&from, link.in.data() + kMagic.size(), sizeof from);
    const int peer = (start_.worker + workers - 1) % workers;
    if (!link.in.starts_with(kMagic) || ntohl(from) != static_cast<std::uint32_t>(peer)) {
      return link.close();
    }
    link.peer = peer;
    link.connector_nonce = link.in.substr(kMagic.size() + sizeof from, kNonceBytes);
    link.listener_nonce = make_nonce();
    link.in.erase(0, kHelloBytes);
    link.state = Link::State::Proof;
    send(link, link.listener_nonce + prove(start_.key, Prover::Server, subject(link)));
  }
  if (link.state == Link::State::Proof) {
    if (link.in.size() < kProofBytes) return;
    if (!is_proof(link.in.substr(0, kProofBytes), start_.key, Prover::Worker, subject(link))) {
      return link.close();
    }
    link.in.erase(0, kProofBytes);
    link.state = Link::State::Up;
  }
}

ProofSubject HeartbeatRing::subject(const Link& link) const {
  return {.job = start_.name,
          .worker = link.outgoing ? start_.worker : link.peer,
          .worker_nonce = link.connector_nonce,
          .server_nonce = link.listener_nonce};
}

void HeartbeatRing::look_at_clock(Link& link, Time now) {
  if (link.state == Link::State::Over) return;
  if (now - link.heard > options_.timeout) {
    return lose(link, FailureCause::Silent,
                link.state == Link::State::Connecting
                    ? "cannot be reached for " + shown(now - link.heard)
                    : "has been silent for " + shown(now - link.heard));
  }
  if (link.state == Link::State::Up && now >= link.next_beat) {
    link.next_beat = now + options_.timeout / 8;
    send(link, std::string(1, kBeat));
  }
}

// Little is sent: where it does not fit into the socket's buffer, the other end has long been
// silent.
void HeartbeatRing::send(Link& link, const std::string& bytes) {
  if (link.fd < 0) return;
  [[maybe_unused]] const ssize_t sent =
      ::send(link.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void HeartbeatRing::lose(Link& link, FailureCause cause, const std::string& what) {
  const bool counts = link.outgoing || link.state == Link::State::Up;
  link.close();
  if (counts) start_.lost(link.peer, cause, what);
}

}  // namespace lockstep
