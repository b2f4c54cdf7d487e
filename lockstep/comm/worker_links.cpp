#include "lockstep/comm/worker_links.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/comm/host_identity.h"
#include "lockstep/comm/mpi/mpi_wire.h"
#include "lockstep/comm/remote/mixed_wire.h"
#include "lockstep/comm/remote/remote_group.h"
#include "lockstep/comm/shared/shared_memory.h"

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

// Which workers are on this one's host, and whether those of a host exchange bytes in memory.
struct HostSharing {
  std::vector<int> host = {};
  bool here = false;
  bool anywhere = false;
};

// Workers on several hosts, or on one without memory that all can map.
class RemoteLinks final : public WorkerLinks {
 public:
  RemoteLinks(std::shared_ptr<Membership> members, Transport transport,
              const WorkerLinksOptions& options, HostSharing sharing)
      : members_(std::move(members)),
        transport_(transport),
        prefix_(options.prefix),
        ports_(options.ports),
        sharing_(std::move(sharing)) {}

  int worker() const override { return members_->worker(); }
  int workers() const override { return members_->workers(); }
  std::string transport() const override {
    const std::string between_hosts = transport_ == Transport::Mpi ? "MPI" : "Gloo";
    return sharing_.anywhere ? between_hosts + ", shared memory within a host" : between_hosts;
  }
  int local_worker() const override {
    return static_cast<int>(
        std::ranges::count_if(sharing_.host, [this](int other) { return other < worker(); }));
  }
  int local_workers() const override { return static_cast<int>(sharing_.host.size()); }
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
    const int group = groups_++;
    const MakeWire between_hosts =
        transport_ == Transport::Mpi ? mpi_wires(timeout) : gloo(group, timeout);
    if (!sharing_.here) return between_hosts;
    return mixed_wires({.between_hosts = between_hosts,
                        .store = &members_->store(),
                        .prefix = fmt::format("{}/rings/{}", prefix_, group),
                        .worker = worker(),
                        .workers = workers(),
                        .host = sharing_.host,
                        .timeout = timeout});
  }
  MakeWire gloo(int group, std::chrono::milliseconds timeout) {
    return gloo_wires({.store = &members_->store(),
                       .prefix = fmt::format("{}/gloo/{}", prefix_, group),
                       .worker = worker(),
                       .workers = workers(),
                       .address = members_->address(),
                       .ports = ports_,
                       .timeout = timeout});
  }

  std::shared_ptr<Membership> members_;
  Transport transport_;
  std::string prefix_;
  PortRange ports_;
  HostSharing sharing_;
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
    members.store().set(key, path_of_descriptor(fd));
  } else {
    const int fd = open_descriptor(members.store().get(key, options.timeout));
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

// Where workers are on several hosts: those of one host share memory if all of them can open a
// descriptor of the first. `asked`: otherwise this only says who is on the host.
HostSharing share_within_hosts(Membership& members, const WorkerLinksOptions& options,
                               std::span<const std::string> hosts, bool asked) {
  const auto index = [](int worker) { return static_cast<std::size_t>(worker); };
  const std::string& mine = hosts[index(members.worker())];
  HostSharing sharing;
  for (int w = 0; w < members.workers(); ++w) {
    if (hosts[index(w)] == mine) sharing.host.push_back(w);
  }
  if (!asked) return sharing;
  const int first = sharing.host.front();
  const std::string key = fmt::format("{}/descriptor of {}", options.prefix, first);
  std::optional<SharedFile> file;  // of the first: until all have opened it
  bool opened = true;
  if (members.worker() == first && sharing.host.size() > 1) {
    file.emplace(memfd_create("lockstep", MFD_CLOEXEC));
    members.store().set(key, path_of_descriptor(file->fd()));
    opened = file->fd() >= 0;
  } else if (sharing.host.size() > 1) {
    const SharedFile theirs(open_descriptor(members.store().get(key, options.timeout)));
    opened = theirs.fd() >= 0;
  }
  const auto said = publish(members, options, "within host", opened ? "ok" : "cannot");
  sharing.here = sharing.host.size() > 1;
  for (const int w : sharing.host) sharing.here = sharing.here && said[index(w)] == "ok";
  for (const std::string& host : hosts) {
    int workers = 0;
    bool all = true;
    for (int w = 0; w < members.workers(); ++w) {
      if (hosts[index(w)] != host) continue;
      ++workers;
      all = all && said[index(w)] == "ok";
    }
    sharing.anywhere = sharing.anywhere || (workers > 1 && all);
  }
  return sharing;
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
  HostSharing sharing = share_within_hosts(members, options, hosts, !one_host);
  return std::make_unique<RemoteLinks>(std::move(membership), transport, options,
                                       std::move(sharing));
}

}  // namespace lockstep
