// Helpers for the tests of the membership in etcd: real etcd processes on loopback, a forwarder
// that cuts a client off, and workers as threads.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cluster/control.h"
#include "lockstep/cluster/etcd/etcd_client.h"
#include "lockstep/cluster/etcd/etcd_membership.h"
#include "lockstep/cluster/etcd/etcd_records.h"
#include "temporary_folder.h"

namespace lockstep {

inline std::optional<std::string> etcd_program() {
  for (const char* path : {"/usr/bin/etcd", "/usr/local/bin/etcd"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return std::nullopt;
}

inline int listen_on_loopback(int port, int* bound) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t size = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 16) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("cannot listen");
  }
  *bound = ntohs(address.sin_port);
  return fd;
}

// An etcd of one or several members, each a process with its data in a temporary folder.
class EtcdServers {
 public:
  explicit EtcdServers(int n) {
    // Taken by somebody else between here and the start: then etcd ends, and others are tried.
    for (int attempt = 0; attempt < 5 && !start(n); ++attempt) kill_all();
  }
  ~EtcdServers() { kill_all(); }
  EtcdServers(const EtcdServers&) = delete;
  EtcdServers& operator=(const EtcdServers&) = delete;

  const std::vector<std::string>& endpoints() const { return endpoints_; }
  void kill_one(std::size_t i) {
    if (pids_[i] <= 0) return;
    kill(pids_[i], SIGKILL);
    waitpid(pids_[i], nullptr, 0);
    pids_[i] = -1;
  }
  void kill_all() {
    for (std::size_t i = 0; i < pids_.size(); ++i) kill_one(i);
  }
  // A client of the test's own.
  EtcdClient& client() { return *client_; }
  static EtcdClient::Time soon() { return EtcdClient::Clock::now() + kHang; }
  bool has(const std::string& key) {
    etcdserverpb::TxnRequest request;
    *request.add_success() = get_key(key);
    return !client_->transact(request, soon()).responses(0).response_range().kvs().empty();
  }

 private:
  bool start(int n) {
    folder_ = std::make_unique<TemporaryFolder>();
    endpoints_.clear();
    pids_.clear();
    std::vector<int> held(static_cast<std::size_t>(2 * n));
    std::vector<std::string> addresses;
    for (int& fd : held) {
      int port = 0;
      fd = listen_on_loopback(0, &port);
      addresses.push_back("127.0.0.1:" + std::to_string(port));
    }
    for (const int fd : held) close(fd);
    std::string cluster;
    for (int i = 0; i < n; ++i) {
      cluster += (i == 0 ? "m" : ",m") + std::to_string(i) + "=http://" +
                 addresses[static_cast<std::size_t>(2 * i + 1)];
    }
    for (int i = 0; i < n; ++i) {
      endpoints_.push_back(addresses[static_cast<std::size_t>(2 * i)]);
      pids_.push_back(spawn("m" + std::to_string(i), "http://" + endpoints_.back(),
                            "http://" + addresses[static_cast<std::size_t>(2 * i + 1)], cluster));
    }
    client_ = std::make_unique<EtcdClient>(EtcdClientOptions{.endpoints = endpoints_});
    const auto deadline = soon();
    while (true) {
      try {
        client_->range("ready", EtcdClient::Clock::now() + seconds(2));
        return true;
      } catch (const CommError&) {
        if (EtcdClient::Clock::now() > deadline) throw;
        for (const pid_t pid : pids_) {
          if (waitpid(pid, nullptr, WNOHANG) == pid) return false;
        }
      }
    }
  }

  pid_t spawn(const std::string& name, const std::string& client, const std::string& peer,
              const std::string& cluster) {
    std::vector<std::string> words = {*etcd_program(),
                                      "--name=" + name,
                                      "--data-dir=" + (*folder_ / name).string(),
                                      "--listen-client-urls=" + client,
                                      "--advertise-client-urls=" + client,
                                      "--listen-peer-urls=" + peer,
                                      "--initial-advertise-peer-urls=" + peer,
                                      "--initial-cluster=" + cluster,
                                      "--initial-cluster-state=new",
                                      "--heartbeat-interval=50",
                                      "--election-timeout=500"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string log = (*folder_ / (name + ".log")).string();
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const pid_t pid = fork();
    if (pid == 0) {
      // No etcd outlives the tests.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out, 1);
      dup2(out, 2);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(out);
    return pid;
  }

  std::unique_ptr<TemporaryFolder> folder_;
  std::vector<std::string> endpoints_;
  std::vector<pid_t> pids_;
  std::unique_ptr<EtcdClient> client_;
};

// Passes connections on to an address, until it is frozen: then they stay open, and nothing
// comes through.
class Forwarder {
 public:
  explicit Forwarder(const std::string& target)
      : target_port_(std::stoi(target.substr(target.rfind(':') + 1))) {
    listener_ = listen_on_loopback(0, &port_);
    wake_ = eventfd(0, EFD_CLOEXEC);
    thread_ = std::thread([this] { loop(); });
  }
  ~Forwarder() {
    stop_ = true;
    wake();
    thread_.join();
    for (const auto& [from, to] : pairs_) close(from);
    close(listener_);
    close(wake_);
  }
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Nothing passes after it has returned.
  void freeze() {
    frozen_ = true;
    wake();
    const std::lock_guard lock(passing_);
  }

 private:
  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
  }
  void loop() {
    while (!stop_) {
      std::vector<pollfd> polled{{.fd = wake_, .events = POLLIN, .revents = 0}};
      if (!frozen_) {
        polled.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
        for (const auto& [from, to] : pairs_) {
          polled.push_back({.fd = from, .events = POLLIN, .revents = 0});
        }
      }
      poll(polled.data(), polled.size(), -1);
      if (polled[0].revents != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
      }
      const std::lock_guard lock(passing_);
      if (frozen_) continue;
      for (std::size_t i = 2; i < polled.size(); ++i) {
        if (polled[i].revents != 0) pass(polled[i].fd);
      }
      if (polled[1].revents != 0) open_pair();
    }
  }
  void open_pair() {
    const int in = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(target_port_));
    if (connect(out, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      close(in);
      close(out);
      return;
    }
    pairs_[in] = out;
    pairs_[out] = in;
  }
  void pass(int from) {
    const auto found = pairs_.find(from);
    if (found == pairs_.end()) return;
    const int to = found->second;
    std::array<char, 65536> bytes;
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      send(to, bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
      return;
    }
    pairs_.erase(from);
    pairs_.erase(to);
    close(from);
    close(to);
  }

  const int target_port_;
  int port_ = 0;
  int listener_ = -1;
  int wake_ = -1;
  std::atomic<bool> frozen_ = false;
  std::atomic<bool> stop_ = false;
  std::mutex passing_;
  std::map<int, int> pairs_;
  std::thread thread_;
};

// Of the test that runs, so that tests that share an etcd do not meet.
inline std::string job_of_test() {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test.test_suite_name()) + "." + test.name();
}

inline EtcdOptions etcd_options(const std::vector<std::string>& endpoints, int worker,
                                int workers) {
  return {.endpoints = endpoints,
          .job = job_of_test(),
          .worker = worker,
          .workers = workers,
          .secret = "a secret of the tests",
          .identity = "host:pid " + std::to_string(worker),
          // Only what a test is about is ever noticed by time.
          .heartbeat_timeout = 10 * kHang,
          .lease_timeout = kHang,
          .join_timeout = kHang};
}

// All workers of a job, joined. Their failures go to mailboxes.
class EtcdWorkers {
 public:
  EtcdWorkers(const std::vector<std::string>& endpoints, int n,
              const std::function<void(EtcdOptions&)>& change = {})
      : members_(static_cast<std::size_t>(n)), failures_(static_cast<std::size_t>(n)) {
    on_threads(n, [&](int i) {
      EtcdOptions options = etcd_options(endpoints, i, n);
      if (change) change(options);
      auto& member = members_[static_cast<std::size_t>(i)];
      member = std::make_unique<EtcdMembership>(options);
      auto& failures = failures_[static_cast<std::size_t>(i)];
      failures = std::make_unique<Failures>();
      member->on_failure([box = failures.get()](const Failure& failure) { box->put(failure); });
    });
  }
  ~EtcdWorkers() {
    on_threads(static_cast<int>(members_.size()),
               [&](int i) { members_[static_cast<std::size_t>(i)].reset(); });
  }
  EtcdMembership& operator[](int i) { return *members_[static_cast<std::size_t>(i)]; }
  Failures& failures(int i) { return *failures_[static_cast<std::size_t>(i)]; }
  void destroy(int i) { members_[static_cast<std::size_t>(i)].reset(); }

 private:
  std::vector<std::unique_ptr<EtcdMembership>> members_;
  std::vector<std::unique_ptr<Failures>> failures_;
};

// An etcd of one member, which all tests of the program share.
class EtcdTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (etcd_program()) servers = std::make_unique<EtcdServers>(1);
  }
  static void TearDownTestSuite() { servers.reset(); }
  void SetUp() override {
    if (!servers) GTEST_SKIP() << "etcd is not installed (Debian: etcd-server)";
  }
  const std::vector<std::string>& endpoints() const { return servers->endpoints(); }

  inline static std::unique_ptr<EtcdServers> servers;
};

}  // namespace lockstep
