#include "lockstep/cli/metrics_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"

namespace lockstep::cli {
namespace {

using MetricsClock = std::chrono::steady_clock;

constexpr std::size_t kMostClients = 16;
constexpr std::size_t kLongestRequest = 8192;
constexpr auto kClientTimeout = std::chrono::seconds(5);

// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }

 private:
  int number_;
};

// A connection: first its request is read, then the answer is written, then it is closed.
struct Client {
  Descriptor socket;
  MetricsClock::time_point deadline;
  std::string request = {};
  std::string answer = {};
  std::size_t sent = 0;

  bool answers() const { return !answer.empty(); }
};

std::string answer_of(const char* status, std::string_view body, bool with_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, body.size(), with_body ? body : std::string_view());
}

// The method and the path without its query, of "GET /metrics?x=1 HTTP/1.1".
std::pair<std::string_view, std::string_view> first_line(std::string_view request) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t space = line.find(' ');
  if (space == line.npos) return {};
  const std::string_view rest = line.substr(space + 1);
  const std::size_t end = rest.find(' ');
  if (end == rest.npos || !rest.substr(end + 1).starts_with("HTTP/1.")) return {};
  const std::string_view target = rest.substr(0, end);
  return {line.substr(0, space), target.substr(0, target.find('?'))};
}

[[noreturn]] void cannot_listen(const MetricsAddress& address, const std::string& why) {
  fail<UsageError>("--metrics {}: cannot listen there: {}; give another port, or 0 for any",
                   with_port(address.host, address.port), why);
}

Descriptor listen_at(const MetricsAddress& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) cannot_listen(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  int number = EADDRNOTAVAIL;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Descriptor socket(::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (socket.get() >= 0 &&
        setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        listen(socket.get(), static_cast<int>(kMostClients)) == 0) {
      return socket;
    }
    number = errno;
  }
  cannot_listen(address, std::generic_category().message(number));
}

int port_of(const Descriptor& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  std::array<char, 16> port = {};
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(generic, length, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV) != 0) {
    return 0;
  }
  return std::stoi(port.data());
}

}  // namespace

MetricsAddress parse_metrics_address(const std::string& text) {
  constexpr const char* kWhat = "--metrics";
  const bool only_port = text.find_first_not_of("0123456789") == std::string::npos;
  const ListenAddress parsed = parse_listen_address(only_port ? "127.0.0.1:" + text : text, kWhat);
  require(parsed.ports.low == parsed.ports.high,
          "--metrics {}: give one port, such as 9100, or 0 for any", text);
  return {.host = parsed.host, .port = parsed.ports.low};
}

class MetricsServer::Impl {
 public:
  explicit Impl(const MetricsAddress& address)
      : listening_(listen_at(address)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        url_("http://" + with_port(address.host, port_of(listening_)) + "/metrics") {
    if (wake_.get() < 0) cannot_listen(address, std::generic_category().message(errno));
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() {
    const std::uint64_t one = 1;
    // An eventfd takes a 1 unless it is full, and then the thread is awake.
    static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
    thread_.join();
  }

  const std::string& url() const { return url_; }

  void set(std::string text) {
    auto next = std::make_shared<const std::string>(std::move(text));
    const std::lock_guard lock(mutex_);
    text_ = std::move(next);
  }

 private:
  void serve() {
    std::vector<pollfd> events;
    for (;;) {
      events.clear();
      events.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
      // Who comes while all places are taken waits in the system's queue.
      const bool full = clients_.size() == kMostClients;
      events.push_back({.fd = full ? -1 : listening_.get(), .events = POLLIN, .revents = 0});
      for (const Client& client : clients_) {
        events.push_back({.fd = client.socket.get(),
                          .events = static_cast<short>(client.answers() ? POLLOUT : POLLIN),
                          .revents = 0});
      }
      if (poll(events.data(), events.size(), wait_ms()) < 0 && errno != EINTR) return;
      if (events[0].revents != 0) return;
      const MetricsClock::time_point now = MetricsClock::now();
      std::vector<Client> kept;
      for (std::size_t i = 0; i < clients_.size(); ++i) {
        const bool ready = events[i + 2].revents != 0;
        if ((!ready || go_on(clients_[i])) && now < clients_[i].deadline) {
          kept.push_back(std::move(clients_[i]));
        }
      }
      clients_ = std::move(kept);
      if (events[1].revents != 0) accept_one();
    }
  }

  int wait_ms() const {
    if (clients_.empty()) return -1;
    const auto first = std::ranges::min_element(clients_, {}, &Client::deadline)->deadline;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(first - MetricsClock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left + 1, 0));
  }

  void accept_one() {
    Descriptor socket(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) return;  // it has gone again
    clients_.push_back(
        {.socket = std::move(socket), .deadline = MetricsClock::now() + kClientTimeout});
  }

  // Reads or writes what can be without waiting. False if the connection is to be closed.
  bool go_on(Client& client) {
    if (!client.answers() && !read_from(client)) return false;
    while (client.sent < client.answer.size()) {
      const ssize_t count = send(client.socket.get(), client.answer.data() + client.sent,
                                 client.answer.size() - client.sent, MSG_NOSIGNAL);
      if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
      client.sent += static_cast<std::size_t>(count);
    }
    return !client.answers();
  }

  bool read_from(Client& client) {
    std::array<char, 2048> bytes;
    for (;;) {
      const ssize_t count = recv(client.socket.get(), bytes.data(), bytes.size(), 0);
      if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
      if (count == 0) return false;
      client.request.append(bytes.data(), static_cast<std::size_t>(count));
      const bool whole = client.request.find("\r\n\r\n") != std::string::npos ||
                         client.request.find("\n\n") != std::string::npos;
      if (whole) client.answer = answer_to(client.request);
      if (!whole && client.request.size() > kLongestRequest) {
        client.answer =
            answer_of("431 Request Header Fields Too Large", "the request is too long\n");
      }
      if (client.answers()) return true;
    }
  }

  std::string answer_to(const std::string& request) {
    const auto [method, path] = first_line(request);
    if (method.empty()) return answer_of("400 Bad Request", "this is not HTTP\n");
    if (method != "GET" && method != "HEAD") {
      return answer_of("405 Method Not Allowed", "use GET\n");
    }
    if (path != "/metrics" && path != "/") return answer_of("404 Not Found", "see /metrics\n");
    std::shared_ptr<const std::string> text;
    {
      const std::lock_guard lock(mutex_);
      text = text_;
    }
    return answer_of("200 OK", *text, method == "GET");
  }

  Descriptor listening_;
  Descriptor wake_;
  std::string url_;
  std::mutex mutex_;
  std::shared_ptr<const std::string> text_ = std::make_shared<const std::string>();
  std::vector<Client> clients_;  // the thread's
  std::thread thread_;
};

MetricsServer::MetricsServer(const MetricsAddress& address)
    : impl_(std::make_unique<Impl>(address)) {}

MetricsServer::~MetricsServer() = default;

const std::string& MetricsServer::url() const {
  return impl_->url();
}

void MetricsServer::set(std::string text) {
  impl_->set(std::move(text));
}

}  // namespace lockstep::cli
