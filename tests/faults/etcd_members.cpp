#include "faults/etcd_members.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

namespace lockstep::faults {
namespace {

constexpr std::chrono::seconds kStart(60);

}  // namespace

EtcdMembers::EtcdMembers(int count, std::filesystem::path folder, const Hosts* hosts, int host)
    : folder_(std::move(folder)),
      hosts_(hosts),
      host_(host),
      address_(hosts == nullptr ? "127.0.0.1" : hosts->address(host)),
      ports_(static_cast<std::size_t>(count)),
      members_(static_cast<std::size_t>(count)) {
  static int used = 0;  // others of this process
  for (int first = 23790 + getpid() % 20000 + 100 * used++; !start_all(first); first += 2 * count) {
    std::filesystem::remove_all(folder_);
  }
}

bool EtcdMembers::start_all(int first_port) {
  std::filesystem::create_directories(folder_);
  for (std::size_t i = 0; i < ports_.size(); ++i) ports_[i] = first_port + static_cast<int>(2 * i);
  for (std::size_t i = 0; i < members_.size(); ++i) start(i);
  for (const auto& member : members_) {
    if (!member->await_text("ready to serve client requests", kStart)) return false;
  }
  return true;
}

void EtcdMembers::start(std::size_t member) {
  const auto url = [&](int port) { return fmt::format("http://{}:{}", address_, port); };
  std::string cluster;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    cluster += fmt::format("{}m{}={}", i == 0 ? "" : ",", i, url(ports_[i] + 1));
  }
  const std::string client = url(ports_[member]);
  const std::string peer = url(ports_[member] + 1);
  const std::string name = fmt::format("m{}", member);
  const ProcessOptions options{.command = {"/usr/bin/etcd",
                                           "--name",
                                           name,
                                           "--data-dir",
                                           (folder_ / name).string(),
                                           "--unsafe-no-fsync",
                                           "--listen-client-urls",
                                           client,
                                           "--advertise-client-urls",
                                           client,
                                           "--listen-peer-urls",
                                           peer,
                                           "--initial-advertise-peer-urls",
                                           peer,
                                           "--initial-cluster",
                                           cluster,
                                           "--heartbeat-interval",
                                           "50",
                                           "--election-timeout",
                                           "500"},
                               .environment = {},
                               .folder = folder_.string()};
  members_[member] =
      hosts_ != nullptr ? hosts_->start(host_, options) : std::make_unique<Process>(options);
}

std::string EtcdMembers::addresses() const {
  std::string text;
  for (const int port : ports_) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", address_, port);
  }
  return text;
}

void EtcdMembers::kill(int member) {
  std::unique_ptr<Process>& process = members_[static_cast<std::size_t>(member)];
  process->kill(SIGKILL);
  process->await_end(kStart);
}

void EtcdMembers::revive() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i]->await_end(std::chrono::seconds(0))) continue;
    start(i);
    members_[i]->await_text("ready to serve client requests", kStart);
  }
}

}  // namespace lockstep::faults
