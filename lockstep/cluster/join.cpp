#include "lockstep/cluster/join.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/await_name.h"
#include "lockstep/cluster/control/control_client.h"
#include "lockstep/cluster/etcd/etcd_address.h"
#include "lockstep/cluster/etcd/etcd_membership.h"
#include "lockstep/cluster/outward_address.h"

namespace lockstep {
namespace {

// Which workers have gone.
class Departures {
 public:
  void note(const ControlEvent& event) {
    const std::lock_guard lock(mutex_);
    if (event.kind == ControlEventKind::Left) left_.insert(event.worker);
    if (event.kind == ControlEventKind::Failed || event.kind == ControlEventKind::Lost) {
      failed_ = true;
    }
    changed_.notify_all();
  }
  // Until so many have left, or one has failed.
  void await(std::size_t workers, std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, at_most, [&] { return failed_ || left_.size() >= workers; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> left_;
  bool failed_ = false;
};

// A worker, and the server where it serves.
struct Joined {
  std::shared_ptr<Departures> departures = std::make_shared<Departures>();
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<ControlClient> client;
  std::chrono::milliseconds patience{0};

  ~Joined() {
    if (client == nullptr || server == nullptr) return;
    const auto workers = static_cast<std::size_t>(client->workers());
    client.reset();
    departures->await(workers, patience);
  }
};

// Reads to the end of a descriptor, or to the end of its first line, and closes it.
std::string read_line(int fd) {
  std::string text;
  std::array<char, 256> part{};
  for (;;) {
    const ssize_t got = read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, "[cluster] LOCKSTEP_SECRET_FD={}: {}", fd, std::strerror(errno));
    if (got == 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.find('\n') != std::string::npos) break;
  }
  close(fd);
  return text.substr(0, text.find('\n'));
}

// Whether workers on other hosts must reach the control plane. Where nobody says how many are on
// this host, a secret says that there are others.
bool spans_hosts(const ClusterSpec& spec, const JoinOptions& options) {
  if (spec.local_workers > 0) return spec.local_workers < spec.workers;
  return !options.secret.empty();
}

std::shared_ptr<Membership> join_by_etcd(const ClusterSpec& spec, const JoinOptions& options) {
  const EtcdAddress etcd = parse_etcd_address(spec.control_address);
  return std::make_shared<EtcdMembership>(
      EtcdOptions{.endpoints = etcd.endpoints,
                  .job = etcd.job.empty() ? "lockstep" : etcd.job,
                  .worker = spec.worker,
                  .workers = spec.workers,
                  .secret = options.secret,
                  .tls = options.tls,
                  .ports = options.ports,
                  .heartbeat_timeout = options.heartbeat_timeout,
                  .progress_timeout = options.progress_timeout,
                  .on_failure = options.on_failure,
                  .join_timeout = options.join_timeout});
}

}  // namespace

std::shared_ptr<Membership> join(const ClusterSpec& spec, const JoinOptions& given) {
  if (is_etcd_address(spec.control_address)) return join_by_etcd(spec, given);
  JoinOptions options = given;
  options.join_timeout -=
      await_name(parse_address(spec.control_address, "the address of the control plane").host,
                 options.join_timeout);
  options.join_timeout = std::max(options.join_timeout, std::chrono::milliseconds(1));
  const auto joined = std::make_shared<Joined>();
  joined->patience = options.heartbeat_timeout;
  std::string address =
      spans_hosts(spec, options) ? outward_address(spec.control_address) : spec.control_address;
  if (spec.serves_control) {
    joined->server = std::make_unique<ControlServer>(ControlServerOptions{
        .address = address,
        .workers = spec.workers,
        .secret = options.secret,
        .tls = options.tls,
        .heartbeat_timeout = options.heartbeat_timeout,
        .join_timeout = options.join_timeout,
        .progress_timeout = options.progress_timeout,
        .on_failure = options.on_failure,
        .on_event = [departures = joined->departures](const ControlEvent& event) {
          departures->note(event);
        }});
    address = joined->server->address();
  }
  joined->client =
      std::make_unique<ControlClient>(ControlClientOptions{.address = address,
                                                           .worker = spec.worker,
                                                           .workers = spec.workers,
                                                           .secret = options.secret,
                                                           .tls = options.tls,
                                                           .join_timeout = options.join_timeout});
  require(joined->client->policy() == options.on_failure,
          "[cluster] worker {} has another policy for failures than the job: give all workers, and "
          "the launcher, the same one",
          spec.worker);
  return {joined, joined->client.get()};
}

std::string job_secret(const Environment& environment) {
  if (const auto fd = environment.find_number("LOCKSTEP_SECRET_FD", 0, 1 << 20)) {
    const std::string secret = read_line(*fd);
    require(!secret.empty(), "[cluster] LOCKSTEP_SECRET_FD={}: there is no secret to read", *fd);
    return secret;
  }
  const auto name = environment.find("LOCKSTEP_SECRET_FILE");
  if (!name) return {};
  std::ifstream file(*name);
  std::string secret;
  std::getline(file, secret);
  require(!secret.empty(),
          "[cluster] LOCKSTEP_SECRET_FILE={}: there is no secret to read; write it into "
          "the first line of this file on every host",
          *name);
  return secret;
}

PortRange job_ports(const Environment& environment) {
  const auto text = environment.find(kPortRangeVariable);
  return text ? parse_port_range(*text, kPortRangeVariable) : PortRange{};
}

TlsFiles job_tls(const Environment& environment) {
  const auto file = [&](const char* name) { return environment.find(name).value_or(""); };
  TlsFiles tls{.certificate = file(kTlsCertificateVariable),
               .key = file(kTlsKeyVariable),
               .authority = file(kTlsAuthorityVariable)};
  if (tls.empty()) return tls;
  for (const char* name : {kTlsCertificateVariable, kTlsKeyVariable, kTlsAuthorityVariable}) {
    require(environment.has(name),
            "[cluster] {} is not set, but others of {}, {} and {} are: TLS needs all three", name,
            kTlsCertificateVariable, kTlsKeyVariable, kTlsAuthorityVariable);
  }
  return tls;
}

}  // namespace lockstep
