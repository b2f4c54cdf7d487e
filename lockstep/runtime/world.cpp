#include "lockstep/runtime/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/pause.h"
#include "lockstep/comm/cuda/gpu_group.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/local/local_group.h"
#include "lockstep/device/cpu/affinity.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/plan/plan.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/runtime/job_devices.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMaxSpinNs = 200'000;

// All gradients in one bucket. Ranks that share a device take its time from one another: overlap
// gains nothing, and ranks that meet once per step need not keep pace within it.
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// Blocks until the counter changes: spins for a while, since a sleeping thread is slow to wake,
// then sleeps.
template <class T>
T await_change(const std::atomic<T>& counter, T seen, std::int64_t spin_ns) {
  const std::int64_t begin = now_ns();
  for (int look = 1;; ++look) {
    const T now = counter;
    if (now != seen) return now;
    pause_core();
    if (look % 64 == 0 && now_ns() - begin > spin_ns) break;
  }
  counter.wait(seen);
  return counter;
}

// What f returns, for take_failure: a byte that says whether it failed, then the result, or the
// kind of its error and the text.
std::string answer_of(int worker, const std::function<std::string()>& f) {
  try {
    return "+" + f();
  } catch (...) {
    const Failure failure = failure_of(worker, std::current_exception());
    return fmt::format("-{}{}", static_cast<char>(failure.kind), failure.message);
  }
}

// The failure of the first worker that has failed. Otherwise the answers become the results.
std::optional<Failure> take_failure(std::vector<std::string>& all) {
  for (std::size_t w = 0; w < all.size(); ++w) {
    const bool good = all[w].front() == '+';
    all[w].erase(0, 1);
    if (good) continue;
    const auto kind = static_cast<FailureKind>(all[w][0]);
    std::string message = all[w].substr(1);
    if (w > 0) message = fmt::format("[worker {}] {}", w, message);
    return Failure{.rank = static_cast<int>(w), .kind = kind, .message = std::move(message)};
  }
  return std::nullopt;
}

}  // namespace

World::World(const WorldOptions& options)
    : cuda_(options.cuda),
      links_(options.links),
      membership_(options.membership),
      make_links_(options.make_links),
      timeout_(options.timeout),
      share_gpus_(options.share_gpus),
      asked_buckets_(options.buckets) {
  const std::vector<std::string> names =
      options.devices.empty() ? std::vector<std::string>{"cpu:0"} : options.devices;
  try {
    add_devices(make_rank_devices(names, options.logical_cpus, options.cores));
  } catch (...) {
    no_devices_ = std::current_exception();
  }
  if (membership_ != nullptr) {
    membership_->on_failure([this](const Failure& failure) { abort_all(failure); });
    membership_->on_heartbeat([this] { return progress(); });
  }
  try {
    meet();
    newcomer_ = membership_ != nullptr && membership_->came_later();
    if (size() > 1) add_groups();
    if (threaded_) start_threads();
  } catch (...) {
    unsubscribe();
    throw;
  }
}

World::World(Device* device) {
  RankDevices made{.devices = {}, .threaded = false};
  if (device == nullptr) {
    made.devices.push_back(std::move(make_cpu_devices(1).front()));
  } else {
    devices_ = {device};
  }
  add_devices(std::move(made));
  names_ = local_names();
}

void World::add_devices(RankDevices made) {
  threaded_ = made.threaded;
  caller_runs_first_ = made.caller_runs_first;
  owned_ = std::move(made.devices);
  for (const auto& device : owned_) devices_.push_back(device.get());
  errors_.resize(devices_.size());
  times_.resize(devices_.size());
  kernels_.resize(devices_.size());
}

std::shared_ptr<World> default_world() {
  if (find_gpus().gpus.empty()) return std::make_shared<World>(nullptr);
  return std::make_shared<World>(WorldOptions{.devices = {"cuda:0"}});
}

void World::start_threads() {
  try {
    for (int local = caller_runs_first_ ? 1 : 0; local < local_size(); ++local) {
      threads_.emplace_back([this, local] { serve(local); });
    }
  } catch (...) {
    end_threads();
    throw;
  }
}

World::~World() {
  unsubscribe();
  end_threads();
}

void World::unsubscribe() {
  if (membership_ == nullptr) return;
  membership_->on_failure({});
  membership_->on_heartbeat({});
}

void World::end_threads() {
  closing_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::string> World::local_names() const {
  std::vector<std::string> names;
  for (const Device* device : devices_) names.push_back(device->name());
  return names;
}

Device* World::batch_memory() const {
  Device& first = device(0);
  return first.shares_host_memory() ? nullptr : &first.allocate_host(0)->device();
}

const KernelLibrary& World::kernels(int local) {
  if (device(local).kind() == DeviceKind::Cpu) return cpu_kernels();
  const std::lock_guard lock(kernels_mutex_);
  std::unique_ptr<KernelLibrary>& library = kernels_[static_cast<std::size_t>(local)];
  if (library == nullptr) {
    library = std::make_unique<KernelLibrary>(make_cuda_kernels(device(local), cuda_));
  }
  return *library;
}

Communicator* World::communicator(int local, int stream) const {
  if (groups_.empty()) return nullptr;
  const std::size_t group = std::min(static_cast<std::size_t>(stream), groups_.size() - 1);
  return &groups_[group]->rank(rank(local));
}

std::vector<std::string> World::exchange(std::string_view mine) {
  expect_met();
  if (control_ == nullptr) return {std::string(mine)};
  try {
    return lockstep::exchange(control_->rank(worker_), mine);
  } catch (const CommError&) {
    // What waits for other workers on a GPU would keep this one from leaving.
    if (const std::optional<Failure> failure = control_->failure()) abort_groups(*failure);
    throw;
  }
}

void World::on_chief(const std::function<void()>& f) {
  gather([&] {
    if (chief()) f();
    return std::string();
  });
}

std::vector<std::string> World::gather(const std::function<std::string()>& f) {
  if (workers() == 1) return {f()};
  std::vector<std::string> all = exchange(answer_of(worker(), f));
  if (const auto failure = take_failure(all)) {
    if (failure->kind == FailureKind::Comm) reset_gpu_groups();
    throw_agreed(*failure);
  }
  return all;
}

void World::open_background() {
  if (workers() == 1 || background_ != nullptr) return;
  keep(make_control(std::chrono::hours(24 * 7)), background_);
}

std::vector<std::string> World::gather_in_background(const std::function<std::string()>& f) {
  if (workers() == 1) return {f()};
  ensure(background_ != nullptr, "[world] the background is not open");
  std::vector<std::string> all =
      lockstep::exchange(background_->rank(worker_), answer_of(worker(), f));
  if (const auto failure = take_failure(all)) throw_failure(*failure);
  return all;
}

// A step that failed on a GPU is noticed when its results are read, which is in no job.
void World::reset_gpu_groups() {
  if (device(0).kind() != DeviceKind::Cuda) return;
  for (const auto& group : groups_) group->reset();
}

const BucketSizes& World::buckets() {
  const std::lock_guard lock(buckets_mutex_);
  if (buckets_) return *buckets_;
  BucketSizes sizes = asked_buckets_;
  if (size() > 1) {
    if (sizes.bytes == 0 || sizes.first_bytes == 0) {
      if (communicator(0, kCommunicationStream)->on_one_device()) {
        if (sizes.first_bytes == 0) sizes.first_bytes = kAll;
        if (sizes.bytes == 0) sizes.bytes = kAll;
      } else {
        sizes = measured_buckets();
      }
    }
    sizes = agreed(sizes);
  }
  return buckets_.emplace(sizes);
}

BucketSizes World::agreed(const BucketSizes& mine) {
  if (workers() == 1) return mine;
  const std::string first = exchange(fmt::format("{} {}", mine.first_bytes, mine.bytes)).front();
  return {.first_bytes = std::stoull(first),
          .bytes = std::stoull(first.substr(first.find(' ') + 1))};
}

// A small and a large all-reduce, the fastest of several each: their difference gives the
// bandwidth, the rest is latency.
BucketSizes World::measured_buckets() {
  constexpr std::size_t kSmall = 64;
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  constexpr int kRounds = 5;
  std::vector<Tensor> memory;
  for (int local = 0; local < local_size(); ++local) {
    memory.emplace_back(DType::F32, Shape{kLarge / sizeof(float)}, device(local));
  }
  double seconds[2] = {1e9, 1e9};
  run([&](int local) {
    Communicator& comm = *communicator(local, kCommunicationStream);
    std::byte* const data = memory[static_cast<std::size_t>(local)].raw();
    const auto small = comm.all_reduce({data, kSmall}, DType::F32);
    const auto large = comm.all_reduce({data, kLarge}, DType::F32);
    Collective* const both[2] = {small.get(), large.get()};
    for (int round = 0; round < kRounds; ++round) {
      for (int which = 0; which < 2; ++which) {
        const std::int64_t begin = now_ns();
        both[which]->start();
        both[which]->finish();
        const double took = static_cast<double>(now_ns() - begin) * 1e-9;
        if (local == 0) seconds[which] = std::min(seconds[which], took);
      }
    }
  });
  const double latency = std::max(seconds[0], 1e-7);
  const double transfer = std::max(seconds[1] - seconds[0], 1e-7);
  link_ = {.latency_s = latency, .bytes_per_s = static_cast<double>(kLarge) / transfer};
  return choose_bucket_sizes(asked_buckets_, *link_);
}

std::vector<std::string> World::run_job(Job job, std::span<Track* const> tracks,
                                        const std::function<std::string()>& tell) {
  expect_met();
  const std::lock_guard lock(one_at_a_time_);
  connect_groups();
  asked_ns_ = now_ns();
  job_ = job;
  if (!threaded() && workers() == 1) {
    devices_.front()->make_current();
    times_[0].begin_ns = asked_ns_;
    job_.call(job_.f, 0);
    times_[0].end_ns = now_ns();
    return {};
  }
  run_locally();
  return rethrow_first(tracks, tell);
}

void World::run_locally() {
  if (!threaded()) {
    devices_.front()->make_current();
    call(0);
    return;
  }
  if (!threads_.empty()) {
    running_ = static_cast<std::int32_t>(threads_.size());
    ++round_;
    round_.notify_all();
  }
  if (caller_runs_first_) {
    const KeepAffinity affinity;
    device(0).pin_thread();
    call(0);
  }
  for (std::int32_t left = running_; left != 0;) left = await_change(running_, left, kMaxSpinNs);
}

// Other workers had told how their ranks ended by `told_ns`; 0: there are none.
void World::account(std::span<Track* const> tracks, std::int64_t told_ns) const {
  if (!threaded()) return;
  std::int64_t last = told_ns;
  for (const Times& times : times_) last = std::max(last, times.end_ns);
  const std::int64_t now = now_ns();
  for (std::size_t local = 0; local < tracks.size(); ++local) {
    tracks[local]->add("wake", SpanKind::Host, asked_ns_, times_[local].begin_ns);
    tracks[local]->add("wait for the others", SpanKind::Wait, times_[local].end_ns, last);
    tracks[local]->add("join", SpanKind::Host, last, now);
  }
}

void World::serve(int local) {
  device(local).pin_thread();
  const Times& last = times_[static_cast<std::size_t>(local)];
  for (std::uint32_t seen = 0;;) {
    // In proportion to a job, so that idle ranks do not keep others from the core.
    const std::int64_t spin = std::min((last.end_ns - last.begin_ns) / 4, kMaxSpinNs);
    seen = await_change(round_, seen, spin);
    if (closing_) return;
    call(local);
    if (--running_ == 0) running_.notify_one();
  }
}

void World::call(int local) noexcept {
  const auto place = static_cast<std::size_t>(local);
  times_[place].begin_ns = now_ns();
  try {
    job_.call(job_.f, local);
  } catch (...) {
    errors_[place] = std::current_exception();
    int nobody = -1;
    if (first_failed_.compare_exchange_strong(nobody, local)) {
      for (const auto& group : groups_) {
        group->abort({.rank = rank(local),
                      .kind = FailureKind::Comm,
                      .message = device(local).name() + " stopped"});
      }
    }
  }
  times_[place].end_ns = now_ns();
}

std::vector<std::string> World::rethrow_first(std::span<Track* const> tracks,
                                              const std::function<std::string()>& tell) {
  const int failed = first_failed_.exchange(-1);
  if (workers() == 1) account(tracks, 0);
  if (failed < 0 && workers() == 1) return {};
  std::exception_ptr error;
  if (failed >= 0) error = errors_[static_cast<std::size_t>(failed)];
  std::ranges::fill(errors_, nullptr);
  if (size() == 1) std::rethrow_exception(error);
  std::string mine = "+";  // as in gather
  if (error != nullptr) {
    const Failure failure = failure_of(rank(failed), error);
    mine = fmt::format("-{}[replica {} on {}] {}", static_cast<char>(failure.kind), rank(failed),
                       device(failed).name(), failure.message);
  } else if (tell) {
    mine += tell();
  }
  std::vector<std::string> all = exchange(mine);
  if (workers() > 1) account(tracks, now_ns());
  // Where a rank only heard that another one stopped, what that one says counts.
  std::optional<Failure> first;
  for (std::string& theirs : all) {
    const bool good = theirs.front() == '+';
    theirs.erase(0, 1);
    if (good) continue;
    const auto kind = static_cast<FailureKind>(theirs[0]);
    const bool explains = first && first->kind == FailureKind::Comm && kind != FailureKind::Comm;
    if (!first || explains) first = {.kind = kind, .message = theirs.substr(1)};
  }
  if (!first) return all;
  for (const auto& group : groups_) group->reset();
  throw_agreed(*first);
}

}  // namespace lockstep
