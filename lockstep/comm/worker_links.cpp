#include "lockstep/comm/worker_links.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/comm/host_identity.h"
#include "lockstep/comm/mpi/mpi_wire.h"
#include "lockstep/comm/remote/remote_group.h"

namespace lockstep {
namespace {

class SharedLinks final : public WorkerLinks {
 public:
  explicit SharedLinks(std::shared_ptr<SharedHost> host) : host_(std::move(host)) {}

  int worker() const override { return host_->process(); }
  int workers() const override { return host_->processes(); }
  std::string transport() const override { return "shared memory"; }
  int local_worker() const override { return worker(); }
  int local_workers() const override { return workers(); }
  std::unique_ptr<Group> make_group(const WorkerGroupOptions& options) override {
    return host_->make_group({.names = options.names,
                              .ranks_of_process = options.ranks_of_worker,
                              .timeout = options.timeout});
  }
  std::unique_ptr<Wire> make_wire(std::chrono::milliseconds) override { return nullptr; }

 private:
  std::shared_ptr<SharedHost> host_;
};

// Workers on several hosts, or on one without memory that all can map.
class RemoteLinks final : public WorkerLinks {
 public:
  RemoteLinks(std::shared_ptr<Membership> members, Transport transport, std::string prefix,
              std::span<const std::string> hosts)
      : members_(std::move(members)), transport_(transport), prefix_(std::move(prefix)) {
    const auto mine = hosts.begin() + members_->worker();
    local_worker_ = static_cast<int>(std::count(hosts.begin(), mine, *mine));
    local_workers_ = static_cast<int>(std::ranges::count(hosts, *mine));
  }

  int worker() const override { return members_->worker(); }
  int workers() const override { return members_->workers(); }
  std::string transport() const override { return transport_ == Transport::Mpi ? "MPI" : "Gloo"; }
  int local_worker() const override { return local_worker_; }
  int local_workers() const override { return local_workers_; }
  std::unique_ptr<Group> make_group(const WorkerGroupOptions& options) override {
    return std::make_unique<RemoteGroup>(
        RemoteGroupOptions{.names = options.names,
                           .ranks_of_worker = options.ranks_of_worker,
                           .timeout = options.timeout,
                           .make_wire = wires(options.timeout)});
  }
  std::unique_ptr<Wire> make_wire(std::chrono::milliseconds timeout) override {
    return wires(timeout)(0);
  }

 private:
  MakeWire wires(std::chrono::milliseconds timeout) {
    return transport_ == Transport::Mpi ? mpi_wires(timeout) : gloo(timeout);
  }
  MakeWire gloo(std::chrono::milliseconds timeout) {
    return gloo_wires({.store = &members_->store(),
                       .prefix = fmt::format("{}/gloo/{}", prefix_, groups_++),
                       .worker = worker(),
                       .workers = workers(),
                       .address = members_->address(),
                       .timeout = timeout});
  }

  std::shared_ptr<Membership> members_;
  Transport transport_;
  std::string prefix_;
  int local_worker_ = 0;
  int local_workers_ = 1;
  int groups_ = 0;
};

// Every member publishes a text under a name; all get all of them, by worker.
std::vector<std::string> publish(Membership& members, const WorkerLinksOptions& options,
                                 const char* name, std::string_view mine) {
  Store& store = members.store();
  const auto key = [&](int worker) {
    return fmt::format("{}/{}/{}", options.prefix, name, worker);
  };
  store.set(key(members.worker()), mine);
  std::vector<std::string> all;
  for (int w = 0; w < members.workers(); ++w) all.push_back(store.get(key(w), options.timeout));
  return all;
}

// Memory that the first worker makes and the others open through its descriptor. Returns null, on
// all workers, where one of them cannot; `why` is what that one says.
std::shared_ptr<SharedHost> share_memory(Membership& members, const WorkerLinksOptions& options,
                                         std::string& why) {
  const int worker = members.worker();
  const std::string key = options.prefix + "/memory";
  std::shared_ptr<SharedHost> host;
  std::string said = "ok";
  if (worker == 0) {
    const int fd = SharedHost::create(members.workers());
    host = std::make_shared<SharedHost>(fd, 0, members.workers(), options.timeout);
    members.store().set(key, fmt::format("/proc/{}/fd/{}", getpid(), fd));
  } else {
    const std::string path = members.store().get(key, options.timeout);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      said = fmt::format("worker {} cannot open the memory of worker 0: {}", worker,
                         std::strerror(errno));
    } else {
      host = std::make_shared<SharedHost>(fd, worker, members.workers(), options.timeout);
    }
  }
  for (const std::string& theirs : publish(members, options, "opened", said)) {
    if (theirs == "ok") continue;
    why = theirs;
    return nullptr;
  }
  return host;
}

}  // namespace

std::unique_ptr<WorkerLinks> make_shared_links(std::shared_ptr<SharedHost> host) {
  return std::make_unique<SharedLinks>(std::move(host));
}

std::unique_ptr<WorkerLinks> make_worker_links(std::shared_ptr<Membership> membership,
                                               const WorkerLinksOptions& options) {
  Membership& members = *membership;
  Transport transport = options.transport;
  const std::vector<std::string> hosts = publish(members, options, "host", host_identity());
  const bool one_host = std::ranges::count(hosts, hosts.front()) == std::ssize(hosts);
  std::string why = "the workers are on several hosts";
  if (one_host && (transport == Transport::Auto || transport == Transport::SharedMemory)) {
    if (std::shared_ptr<SharedHost> host = share_memory(members, options, why)) {
      return make_shared_links(std::move(host));
    }
  }
  require(transport != Transport::SharedMemory, "[cluster] no shared memory between workers: {}",
          why);
  if (transport == Transport::Auto) transport = Transport::Gloo;
  if (transport == Transport::Mpi) {
    const MpiPlace place = mpi_place();
    require(
        place.worker == members.worker() && place.workers == members.workers(),
        "[cluster] this is worker {} of {}, but process {} of {} for MPI: start the workers with "
        "mpirun, or use another transport",
        members.worker(), members.workers(), place.worker, place.workers);
  }
  return std::make_unique<RemoteLinks>(std::move(membership), transport, options.prefix, hosts);
}

}  // namespace lockstep
