#include "lockstep/comm/shared/shared_host.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/shared/processes.h"
#include "lockstep/comm/shared/shared_group.h"
#include "lockstep/comm/shared/shared_memory.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMagic = 0x4C4F434B53544550;  // "LOCKSTEP"

// At the start of the memory; the records and the barrier of the processes follow it.
struct HostHead {
  alignas(64) std::uint64_t magic = kMagic;
  std::int32_t processes = 0;
};

std::size_t records_bytes(int processes) {
  return sizeof(ProcessRecord) * static_cast<std::size_t>(processes);
}

std::size_t head_bytes(int processes) {
  return whole_pages(sizeof(HostHead) + records_bytes(processes) +
                     ProcessBarrier::bytes(processes));
}

// FNV-1a.
std::uint64_t digest_of(const SharedGroupOptions& options) {
  std::string all;
  for (const std::string& name : options.names) all += name + '\n';
  for (const int ranks : options.ranks_of_process) all += std::to_string(ranks) + ' ';
  std::uint64_t digest = 0xCBF29CE484222325;
  for (const char byte : all) {
    digest = (digest ^ static_cast<std::uint8_t>(byte)) * 0x100000001B3;
  }
  return digest;
}

void check(const SharedGroupOptions& options, int processes) {
  const std::vector<int>& counts = options.ranks_of_process;
  require(std::ssize(counts) == processes,
          "[comm] a group of {} processes was given the ranks of {}", processes, counts.size());
  for (const int count : counts) {
    require(count >= 0, "[comm] a process cannot hold {} ranks", count);
  }
  const int ranks = std::accumulate(counts.begin(), counts.end(), 0);
  require(ranks > 0 && std::ssize(options.names) == ranks,
          "[comm] a group needs a name for every rank: it has {} ranks and {} names", ranks,
          options.names.size());
  require(options.timeout.count() > 0, "[comm] a group's timeout must be positive, not {} ms",
          options.timeout.count());
}

// Memory of a file that was checked to be a SharedHost's.
Mapping map_head(const SharedFile& file, int processes) {
  require(file.bytes() >= head_bytes(processes),
          "[comm] descriptor {} is not shared memory of {} processes", file.fd(), processes);
  return {file, 0, head_bytes(processes)};
}

}  // namespace

struct SharedHost::Parts {
  Parts(int fd, int process, int processes, std::chrono::milliseconds timeout)
      : file(std::make_shared<SharedFile>(fd)),
        head(map_head(*file, processes)),
        timeout(timeout),
        end(head_bytes(processes)) {
    const auto& first = *reinterpret_cast<const HostHead*>(head.data());
    require(first.magic == kMagic && first.processes == processes,
            "[comm] process {} of {} was given memory of {} processes", process, processes,
            first.magic == kMagic ? first.processes : 0);
    this->processes.emplace(
        std::span(reinterpret_cast<ProcessRecord*>(head.data() + sizeof(HostHead)),
                  static_cast<std::size_t>(processes)),
        process);
    barrier.emplace(head.data() + sizeof(HostHead) + records_bytes(processes), *this->processes);
  }

  // Allocates the head of a group and the staging buffers of this process's ranks; returns errno,
  // or 0. Each process allocates those of its own ranks, so that they are close to its cores.
  int reserve(const SharedGroupOptions& options, const SharedLayout& layout) const {
    const int process = processes->process();
    if (process == 0) {
      if (const int error = file->reserve(end, layout.staging)) return error;
    }
    const auto before = options.ranks_of_process.begin() + process;
    if (*before == 0) return 0;
    const auto first =
        static_cast<std::size_t>(std::accumulate(options.ranks_of_process.begin(), before, 0));
    return file->reserve(end + layout.staging + first * layout.shape.area_bytes,
                         static_cast<std::size_t>(*before) * layout.shape.area_bytes);
  }

  std::shared_ptr<const SharedFile> file;
  Mapping head;
  std::chrono::milliseconds timeout;
  std::optional<Processes> processes;
  std::optional<ProcessBarrier> barrier;
  std::size_t end;         // of the part of the file that groups have taken
  std::uint64_t turn = 0;  // groups made
};

int SharedHost::create(int processes, OnExec on_exec) {
  require(processes > 0, "[comm] a job needs at least one process, not {}", processes);
  const int fd = memfd_create("lockstep", on_exec == OnExec::Close ? MFD_CLOEXEC : 0u);
  if (fd < 0) fail<CommError>("[comm] no shared memory: {}", std::strerror(errno));
  SharedFile file(fd);
  if (const int error = file.reserve(0, head_bytes(processes))) {
    fail<MemoryError>("[comm] no shared memory for {} processes: {}", processes,
                      std::strerror(error));
  }
  const Mapping head(file, 0, head_bytes(processes));
  new (head.data()) HostHead{.processes = processes};
  return file.give_up();
}

SharedHost::SharedHost(int fd, int process, int processes, std::chrono::milliseconds timeout) {
  require(processes > 0 && process >= 0 && process < processes, "[comm] process {} of {}", process,
          processes);
  require(timeout.count() > 0, "[comm] a host's timeout must be positive, not {} ms",
          timeout.count());
  parts_ = std::make_shared<Parts>(fd, process, processes, timeout);
}

SharedHost::~SharedHost() = default;

int SharedHost::process() const {
  return parts_->processes->process();
}

int SharedHost::processes() const {
  return parts_->processes->count();
}

std::unique_ptr<Group> SharedHost::make_group(const SharedGroupOptions& options) {
  check(options, processes());
  Parts& parts = *parts_;
  Processes& all = *parts.processes;
  const auto turn = parts.turn % 2;
  const SharedLayout layout(static_cast<int>(options.names.size()), processes());
  ProcessRecord& mine = all.record(process());
  mine.digest[turn] = digest_of(options);
  mine.error[turn] = parts.reserve(options, layout);
  parts.barrier->pass("make a group", parts.timeout);
  for (int other = 0; other < processes(); ++other) {
    const ProcessRecord& theirs = all.record(other);
    require(theirs.digest[turn] == all.record(0).digest[turn],
            "[comm] {} and {} make different groups: the names of the ranks and the number of "
            "ranks of each process must be the same in all processes",
            all.name(0), all.name(other));
    if (const int error = theirs.error[turn]) {
      fail<MemoryError>("[comm] {} has no shared memory for a group of {} ranks: {}",
                        all.name(other), options.names.size(), std::strerror(error));
    }
  }
  const std::size_t offset = parts.end;
  parts.end += layout.bytes;
  ++parts.turn;
  return std::make_unique<SharedGroup>(options, std::shared_ptr<Processes>(parts_, &all),
                                       std::make_unique<SharedRegion>(parts.file, offset, layout));
}

}  // namespace lockstep
