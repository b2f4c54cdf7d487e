#include "lockstep/comm/shared/shared_group.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

// Of all processes' ranks, and of this one's where it may not use all cores.
bool have_own_cores(int ranks, int local) {
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return ranks <= cores && local <= static_cast<int>(available_cores().size());
}

}  // namespace

SharedLayout::SharedLayout(int ranks, int processes) : processes(processes), shape(ranks) {
  barrier = Meeting::bytes(ranks, processes);
  gone = barrier + ProcessBarrier::bytes(processes);
  staging = whole_pages(gone + sizeof(std::atomic<std::int32_t>));
  bytes = whole_pages(staging + shape.area_bytes * static_cast<std::size_t>(ranks));
}

SharedRegion::SharedRegion(std::shared_ptr<const SharedFile> file, std::size_t offset,
                           const SharedLayout& layout)
    : file_(std::move(file)),
      offset_(offset),
      layout_(layout),
      mapping_(std::make_unique<Mapping>(*file_, offset, layout.bytes)) {}

SharedRegion::~SharedRegion() {
  auto& gone = *reinterpret_cast<std::atomic<std::int32_t>*>(data() + layout_.gone);
  const bool last = gone.fetch_add(1) + 1 == layout_.processes;
  mapping_.reset();
  if (last) file_->release(offset_, layout_.bytes);
}

SharedGroup::SharedGroup(const SharedGroupOptions& options, std::shared_ptr<Processes> processes,
                         std::unique_ptr<SharedRegion> region)
    : ranks_of_process_(options.ranks_of_process),
      processes_(std::move(processes)),
      region_(std::move(region)),
      barrier_(region_->data() + region_->layout().barrier, *processes_),
      rendezvous_(
          {.names = options.names,
           .timeout = options.timeout,
           .own_cores = have_own_cores(
               static_cast<int>(options.names.size()),
               options.ranks_of_process[static_cast<std::size_t>(processes_->process())]),
           .process = processes_->process(),
           .between_processes = true},
          Meeting(region_->data(), static_cast<int>(options.names.size()), processes_->count()),
          *this) {
  const auto before = ranks_of_process_.begin() + processes_->process();
  local_.resize(static_cast<std::size_t>(*before));
  std::iota(local_.begin(), local_.end(), std::accumulate(ranks_of_process_.begin(), before, 0));
  for (const int rank : local_) {
    rounds_.push_back(std::make_unique<SharedRank>(rendezvous_, rank, region_->layout().shape,
                                                   ranks_of_process_,
                                                   region_->data() + region_->layout().staging));
    communicators_.push_back(
        std::make_unique<HostCommunicator>(rendezvous_, rank, *rounds_.back()));
  }
}

Communicator& SharedGroup::rank(int rank) {
  require(rank >= 0 && rank < size(), "[comm] rank {} of a group with ranks 0 to {}", rank,
          size() - 1);
  const auto found = std::ranges::find(local_, rank);
  require(found != local_.end(), "[comm] rank {} ({}) is another process's; this one, {}, has {}",
          rank, rendezvous_.name(rank), processes_->name(processes_->process()),
          local_.empty() ? "none" : fmt::format("ranks {} to {}", local_.front(), local_.back()));
  return *communicators_[static_cast<std::size_t>(found - local_.begin())];
}

// First all processes leave their collectives; then each drops what its ranks had in flight, and
// nobody starts again before all have done so.
void SharedGroup::reset() {
  barrier_.pass("reset the group", rendezvous_.timeout());
  rendezvous_.reset(local_);
  for (const auto& rank : rounds_) rank->reset();
  barrier_.pass("reset the group", rendezvous_.timeout());
}

void SharedGroup::do_slice(std::span<const Round>, std::uint64_t number, int rank) noexcept {
  rounds_[static_cast<std::size_t>(rank - local_.front())]->add(number);
}

std::optional<Failure> SharedGroup::find_dead() {
  int first = 0;
  for (int process = 0; process < processes_->count(); ++process) {
    const int ranks = ranks_of_process_[static_cast<std::size_t>(process)];
    const bool others = process != processes_->process() && ranks > 0;
    if (others && processes_->is_dead(process)) {
      std::string names = rendezvous_.name(first);
      for (int rank = first + 1; rank < first + ranks; ++rank) {
        names += ", " + rendezvous_.name(rank);
      }
      return Failure{.rank = first,
                     .kind = FailureKind::Comm,
                     .message = fmt::format("[comm] {} has ended, and with it {}",
                                            processes_->name(process), names)};
    }
    first += ranks;
  }
  return std::nullopt;
}

}  // namespace lockstep
