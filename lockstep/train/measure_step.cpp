#include "lockstep/train/measure_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/device/device_memory.h"
#include "lockstep/train/measure_host.h"
#include "lockstep/train/solo_step.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/step_turns.h"

namespace lockstep {
namespace {

constexpr int kTurns = 5;
constexpr int kMostSteps = 2000;  // per turn
// Parts of the time: one replica alone, several side by side, collectives.
constexpr double kAloneShare = 0.55;
constexpr double kTogetherShare = 0.3;
constexpr double kCollectiveShare = 0.1;
constexpr int kMeasuredRanks = 2;  // as if there were
constexpr int kMoreRanks = 16;     // to see what shrinks with their slices
constexpr std::size_t kJitterKept = 201;
constexpr std::size_t kFirstBucket = std::size_t{1} << 20;
constexpr std::size_t kBucket = std::size_t{8} << 20;

// What identifies an instruction in plans for other batches.
std::map<std::string, std::size_t> places_of(const std::vector<MeasuredInstruction>& instructions) {
  std::map<std::string, std::size_t> places;
  std::map<std::string, int> seen;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const std::string name = instructions[i].op + " " + instructions[i].name;
    places.emplace(fmt::format("{} {}", name, seen[name]++), i);
  }
  return places;
}

class Measurement {
 public:
  Measurement(const StepRecipe& recipe, const ModelStep& step, const MeasureStepOptions& options)
      : recipe_(recipe), measuring_(recipe), step_(step), options_(options), begin_ns_(now_ns()) {
    require(options.batch > 0, "[measure] a piece of {} samples", options.batch);
    require(options.seconds > 0, "[measure] {} seconds to measure in", options.seconds);
    alone_ = std::make_unique<World>(world_options(1));
    copies_ = std::max<int>(1, static_cast<int>(options.devices.size()));
    if (copies_ > 1) all_ = std::make_unique<World>(world_options(copies_));
    buckets_ = all_ != nullptr ? all_->buckets()
                               : BucketSizes{.first_bytes = kFirstBucket, .bytes = kBucket};
    if (recipe_.memory.accumulate == 0) recipe_.memory.accumulate = fewest_micro_batches();
    // Pieces of other sizes have as many micro-batches as this one.
    const std::int64_t batch = options.batch;
    rows_ = (batch + recipe_.memory.accumulate - 1) / recipe_.memory.accumulate;
    measuring_.memory.accumulate = (batch + rows_ - 1) / rows_;
  }

  MeasuredStep run() {
    describe();
    measure_alone();
    find_slices();
    plan_memory();
    // A GPU's steps are issued while those before them run.
    if (!is_gpu(*alone_)) result_.host_seconds.fixed = measure_meeting(*alone_);
    if (all_ != nullptr) measure_together();
    if (!is_gpu(*alone_)) result_.wire_s_per_byte = measure_wire_cost();
    return std::move(result_);
  }

 private:
  WorldOptions world_options(int copies) const {
    WorldOptions world{.logical_cpus = options_.logical_cpus, .cuda = options_.cuda};
    world.devices.assign(
        options_.devices.begin(),
        options_.devices.begin() + std::min<std::ptrdiff_t>(copies, std::ssize(options_.devices)));
    return world;
  }

  void tell(std::string_view what) {
    if (!options_.on_progress) return;
    options_.on_progress(what, std::min(1.0, seconds_from(begin_ns_) / options_.seconds));
  }

  void describe() {
    const Device& device = alone_->device(0);
    result_.model = options_.model;
    result_.batch = options_.batch;
    result_.precision = !recipe_.precision                 ? "float32"
                        : *recipe_.precision == DType::F16 ? "mixed_float16"
                                                           : "mixed_bfloat16";
    result_.device = is_gpu(*alone_) ? "cuda" : "cpu";
    result_.options = recipe_.memory;
    result_.ranks = kMeasuredRanks;
    result_.hardware = hardware_of(device);
  }

  std::unique_ptr<Turns> turns_for(World& world, int copies, std::int64_t samples,
                                   int ranks = kMeasuredRanks) {
    tell(fmt::format("planning {} samples", samples));
    return std::make_unique<Turns>(world, copies, measuring_, step_, samples,
                                   SoloOptions{.ranks = ranks, .buckets = buckets_});
  }

  StepPlans plans_for(int ranks, std::int64_t samples) {
    return solo_plans(*alone_, 0, recipe_, step_, samples, {.ranks = ranks, .buckets = buckets_});
  }
  std::size_t bytes_for(int ranks, std::int64_t samples) {
    return plans_for(ranks, samples).bytes_on(alone_->device(0), 0).total();
  }

  // With which the replicas of this machine fit into its memory.
  std::int64_t fewest_micro_batches() {
    const Device& device = alone_->device(0);
    const double room = (1 - kMemoryHeadroom) * static_cast<double>(memory_of(device).bytes);
    const auto enough = [&](std::int64_t count) {
      recipe_.memory.accumulate = count;
      const int sharing = is_gpu(*alone_) ? 1 : copies_;
      return sharing * static_cast<double>(bytes_for(kMeasuredRanks, options_.batch)) <= room;
    };
    std::int64_t count = 1;
    while (!enough(count)) {
      require(count < options_.batch,
              "[measure] even with one sample per micro-batch a step of {} samples does not fit "
              "into the memory of {}",
              options_.batch, memory_of(device).name);
      count = std::min(2 * count, options_.batch);
    }
    std::int64_t too_few = count / 2;
    while (count - too_few > 1) {
      const std::int64_t middle = too_few + (count - too_few) / 2;
      (enough(middle) ? count : too_few) = middle;
    }
    return count;
  }

  // Which part of an instruction's time shrinks with the slices: where those of more ranks are less
  // work by the plan, what they took less.
  void find_slices() {
    if (sliced_ == nullptr) return;
    const std::vector<double> here = main_->instruction_seconds();
    const std::vector<double> there = sliced_->instruction_seconds();
    const std::map<std::string, std::size_t> places = places_of(sliced_->instructions());
    constexpr double kGone = 1 - static_cast<double>(kMeasuredRanks) / kMoreRanks;
    for (const auto& [name, i] : places_of(result_.instructions)) {
      MeasuredInstruction& each = result_.instructions[i];
      const auto found = places.find(name);
      if (found == places.end() || !(each.bytes > 0) || !(here[i] > 0)) continue;
      const double by_plan =
          (1 - sliced_->instructions()[found->second].bytes / each.bytes) / kGone;
      const double measured = (1 - there[found->second] / here[i]) / kGone;
      each.sliced = std::clamp(measured, 0.0, std::clamp(by_plan, 0.0, 1.0));
    }
  }

  // What a replica of each number needs, from its plan.
  void plan_memory() {
    const bool alike = recipe_.memory.shard == 0 && !options_.divided;
    std::set<int> counts = {1, kMeasuredRanks};
    if (!alike) counts.insert(options_.ranks.begin(), options_.ranks.end());
    if (recipe_.memory.shard > 0) counts.insert(kMoreRanks);
    for (const int ranks : counts) {
      tell(fmt::format("planning {} ranks", ranks));
      const std::int64_t samples =
          options_.divided ? std::max<std::int64_t>(1, options_.batch / ranks) : options_.batch;
      const auto piece = static_cast<double>(samples);
      try {
        const auto bytes = static_cast<double>(bytes_for(ranks, samples));
        const double slope = std::min(result_.memory.per_sample, bytes / piece);
        result_.memory_by_ranks.push_back(
            {.ranks = ranks, .bytes = {.fixed = bytes - slope * piece, .per_sample = slope}});
      } catch (const UsageError&) {
        // A budget for recomputation that so few ranks cannot meet.
        if (std::ranges::count(options_.ranks, ranks) > 0) throw;
      }
    }
  }

  static int steps_in(double seconds, double step_s) {
    return std::clamp(static_cast<int>(seconds / std::max(step_s, 1e-7)), 1, kMostSteps);
  }

  void measure_alone() {
    const std::int64_t batch = options_.batch;
    main_ = turns_for(*alone_, 1, batch);
    require(
        main_->fits_in_memory(),
        "[measure] a step of {} samples needs {:.1f} MiB, which is more than half of the memory "
        "that is free: use a smaller batch",
        batch, main_->plan_bytes() / (1 << 20));
    tell(fmt::format("{} samples", batch));
    const double step_s = main_->begin();
    const double budget = options_.seconds * kAloneShare;
    const std::int64_t parts = measuring_.memory.accumulate;
    // A step that takes long is run with fewer samples besides.
    const bool slow = step_s * kTurns * 3.5 > budget;
    for (const std::int64_t samples :
         slow ? std::vector{parts * std::max<std::int64_t>(1, rows_ / 4)}
              : std::vector{parts * std::max<std::int64_t>(1, rows_ / 2), parts * rows_ * 2}) {
      if (samples == batch) continue;
      others_.push_back(turns_for(*alone_, 1, samples));
      if (!others_.back()->fits_in_memory()) {
        others_.pop_back();
        continue;
      }
      others_.back()->begin();
    }
    if (recipe_.memory.shard > 0) {
      sliced_ = turns_for(*alone_, 1, batch, kMoreRanks);
      sliced_->begin();
    }
    const int turns = std::clamp(static_cast<int>(budget / (step_s * 3.5)), 2, kTurns);
    const auto sizes = static_cast<double>(others_.size() + (sliced_ == nullptr ? 1 : 2));
    for (int turn = 0; turn < turns; ++turn) {
      const double each = budget / turns / sizes;
      tell(fmt::format("{} samples", batch));
      main_->turn(steps_in(each, step_s));
      for (const auto& other : others_) {
        tell(fmt::format("{} samples", static_cast<std::int64_t>(other->samples())));
        other->turn(steps_in(each, step_s * other->samples() / main_->samples()));
      }
      if (sliced_ == nullptr) continue;
      tell("smaller slices");
      sliced_->turn(steps_in(each, step_s));
    }
    fit();
  }

  void fit() {
    result_.instructions = main_->instructions();
    std::vector<double> samples = {main_->samples()};
    std::vector<double> bytes = {main_->plan_bytes()};
    std::vector<std::vector<double>> seconds = {main_->instruction_seconds()};
    std::vector<std::map<std::string, std::size_t>> places = {places_of(main_->instructions())};
    for (const auto& other : others_) {
      samples.push_back(other->samples());
      bytes.push_back(other->plan_bytes());
      seconds.push_back(other->instruction_seconds());
      places.push_back(places_of(other->instructions()));
    }
    for (const auto& [name, i] : places.front()) {
      std::vector<double> sizes;
      std::vector<double> values;
      for (std::size_t k = 0; k < samples.size(); ++k) {
        const auto found = places[k].find(name);
        if (found == places[k].end()) continue;
        sizes.push_back(samples[k]);
        values.push_back(seconds[k][found->second]);
      }
      result_.instructions[i].seconds = fit_per_piece(sizes, values);
    }
    result_.memory = fit_per_piece(samples, bytes);
    std::vector<double> jitter = main_->jitter();
    if (jitter.size() > kJitterKept) {
      std::vector<double> some;
      for (std::size_t q = 0; q < kJitterKept; ++q) {
        some.push_back(jitter[q * (jitter.size() - 1) / (kJitterKept - 1)]);
      }
      jitter = std::move(some);
    }
    result_.jitter = std::move(jitter);
  }

  // 2, 4, … and all of them.
  std::vector<int> copy_counts() const {
    std::vector<int> counts;
    for (int count = 2; count < copies_; count *= 2) counts.push_back(count);
    counts.push_back(copies_);
    return counts;
  }

  void measure_together() {
    const std::vector<int> counts = copy_counts();
    const double part = 1 / static_cast<double>(counts.size());
    for (const int count : counts) {
      tell(fmt::format("{} copies side by side", count));
      side_by_side(count, options_.seconds * kTogetherShare * part);
      if (!is_gpu(*all_)) collectives(count, options_.seconds * kCollectiveShare * part);
    }
    if (is_gpu(*all_)) return;
    result_.meet_seconds = std::max(0.0, measure_meeting(*all_) - result_.host_seconds.fixed);
  }

  // They take turns with one alone.
  void side_by_side(int count, double seconds) {
    World world(world_options(count));
    const auto together = turns_for(world, count, options_.batch);
    if (!together->fits_in_memory()) return;
    together->begin();
    const double step_s = main_->seconds();
    const int turns = std::clamp(static_cast<int>(seconds / (step_s * 5)), 2, kTurns);
    const int steps = steps_in(seconds / turns / 2, step_s);
    std::vector<double> ratios;
    for (int turn = 0; turn < turns; ++turn) {
      tell(fmt::format("{} copies side by side", count));
      main_->turn(steps);
      together->turn(steps);
      ratios.push_back(together->turns().back() / main_->turns().back());
    }
    result_.side_by_side.push_back({.copies = count, .slowdown = std::max(1.0, median_of(ratios))});
  }

  void collectives(int count, double seconds) {
    std::map<std::string, std::vector<std::int64_t>> sizes = {{"all_reduce", {256}}};
    for (const MeasuredInstruction& each : result_.instructions) {
      if (each.collective.empty() || each.collective == "broadcast" || each.wire_bytes < 4)
        continue;
      std::vector<std::int64_t>& bytes = sizes.try_emplace(each.collective, 1, 256).first->second;
      if (std::ranges::count(bytes, each.wire_bytes) == 0) bytes.push_back(each.wire_bytes);
    }
    World world(world_options(count));
    for (const auto& [op, bytes] : sizes) {
      const bool adds = op != "all_gather";
      const DType dtype = adds ? recipe_.memory.gradients.value_or(DType::F32) : DType::F32;
      result_.host_collectives.push_back(measure_host_collective(
          world, op, dtype, bytes, seconds / static_cast<double>(sizes.size())));
    }
  }

  StepRecipe recipe_;
  StepRecipe measuring_;  // the same with as many micro-batches as there are
  const ModelStep& step_;
  const MeasureStepOptions& options_;
  std::int64_t begin_ns_;
  int copies_ = 1;
  std::int64_t rows_ = 1;  // of a micro-batch
  BucketSizes buckets_;
  std::unique_ptr<World> alone_;
  std::unique_ptr<World> all_;
  std::unique_ptr<Turns> main_;
  std::vector<std::unique_ptr<Turns>> others_;
  std::unique_ptr<Turns> sliced_;  // of more ranks; none where nothing is sliced
  MeasuredStep result_;
};

}  // namespace

MeasuredStep measure_step(const StepRecipe& recipe, const ModelStep& step,
                          const MeasureStepOptions& options) {
  return Measurement(recipe, step, options).run();
}

}  // namespace lockstep
