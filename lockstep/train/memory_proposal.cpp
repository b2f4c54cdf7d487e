#include "lockstep/train/memory_proposal.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/explain/simulate.h"
#include "lockstep/train/measure_rates.h"
#include "lockstep/train/step_memory.h"

namespace lockstep {
namespace {

std::string gib_text(std::size_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.0f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

// Plans of one step with other options.
class ProposedPlans {
 public:
  ProposedPlans(const std::shared_ptr<World>& world, const StepRecipe& recipe,
                const ModelStep& step, std::span<const Piece> pieces,
                std::optional<std::size_t> limit)
      : world_(world), recipe_(recipe), step_(step), pieces_(pieces), limit_(limit) {
    world_->buckets();
    rates_ = measure_rates(*world_, recipe.precision);
    scenario_.replicas = world_->size();
    scenario_.per_host = world_->size();
    if (const std::optional<LinkSpeed>& link = world_->link()) {
      scenario_.within = {.name = "measured",
                          .latency_s = link->latency_s,
                          .bytes_per_s = link->bytes_per_s,
                          .shared_by_host = false};
    }
  }

  MemoryCandidate plan(const MemoryOptions& options) {
    // A session of its own: what one combination has agreed on, such as cuts of buckets, is not
    // another one's.
    Session session({.world = world_, .seed = recipe_.seed});
    Accumulators accumulators;
    StepRecipe tried = recipe_;
    tried.memory = options;
    tried.accumulators = &accumulators;
    const StepRequest request =
        request_step(*world_, recipe_.optimizer, step_, pieces_, options.accumulate);
    const StepPlans plans = plan_step(session, tried, request);
    const std::vector<Resident> found = residents(*world_, plans, limit_);
    const Resident& worst = *std::ranges::max_element(found, {}, &filled);
    memory_ = room_of(worst);
    of_ = worst.memory;
    MemoryCandidate candidate{
        .options = options, .bytes = worst.needed_bytes, .seconds = seconds_of(plans.step)};
    for (const std::size_t kind : plans.turns) candidate.seconds += seconds_of(plans.kinds[kind]);
    return agreed(candidate);
  }

  // Of the worker with least room, which must have planned something.
  std::size_t memory() const { return memory_; }
  const std::string& of() const { return of_; }
  bool separate_memory() const { return !world_->device(0).shares_host_memory(); }

 private:
  static double filled(const Resident& each) {
    return static_cast<double>(each.needed_bytes) / static_cast<double>(each.memory_bytes);
  }
  std::size_t room_of(const Resident& each) const {
    if (limit_) return each.memory_bytes;
    return static_cast<std::size_t>((1 - kMemoryHeadroom) * static_cast<double>(each.memory_bytes));
  }

  double seconds_of(const std::vector<Plan>& plans) const {
    MeasuredStep estimated = estimated_step(plans.front(), rates_);
    estimated.device = separate_memory() ? "cuda" : "cpu";
    if (!separate_memory() && scenario_.replicas > 1 && scenario_.within.bytes_per_s > 0) {
      estimated.host_collectives = {{.ranks = scenario_.replicas,
                                     .seconds = scenario_.within.latency_s,
                                     .seconds_per_byte = 1 / scenario_.within.bytes_per_s}};
    }
    return simulate(estimated, scenario_).step_s;
  }

  // The fullest worker's bytes and room, and the first one's time.
  MemoryCandidate agreed(MemoryCandidate mine) {
    if (world_->workers() == 1) return mine;
    const std::vector<std::string> all =
        world_->exchange(fmt::format("{} {} {}", mine.bytes, memory_, mine.seconds));
    double fullest = -1;
    for (const std::string& theirs : all) {
      std::size_t bytes = 0;
      std::size_t room = 0;
      double seconds = 0;
      const char* at = theirs.data();
      const char* const end = at + theirs.size();
      at = std::from_chars(at, end, bytes).ptr + 1;
      at = std::from_chars(at, end, room).ptr + 1;
      std::from_chars(at, end, seconds);
      if (&theirs == &all.front()) mine.seconds = seconds;
      const double part = static_cast<double>(bytes) / static_cast<double>(room);
      if (part <= fullest) continue;
      fullest = part;
      mine.bytes = bytes;
      memory_ = room;
    }
    return mine;
  }

  std::shared_ptr<World> world_;
  const StepRecipe& recipe_;
  const ModelStep& step_;
  std::span<const Piece> pieces_;
  std::optional<std::size_t> limit_;
  DeviceRates rates_;
  Scenario scenario_;
  std::size_t memory_ = 0;
  std::string of_;
};

}  // namespace

MemoryProposal propose_memory(const std::shared_ptr<World>& world, const StepRecipe& recipe,
                              const ModelStep& step, std::span<const Piece> pieces,
                              std::optional<std::size_t> limit) {
  ProposedPlans plans(world, recipe, step, pieces, limit);
  MemoryOptions asked = recipe.memory;
  asked.accumulate = std::max<std::int64_t>(1, asked.accumulate);
  // Without what needs to know the memory first, to learn how much there is.
  MemoryOptions plain = asked;
  plain.recompute = {};
  plans.plan(plain);
  const MemorySearch search{.asked = asked,
                            .ranks = world->size(),
                            .samples = largest_piece(pieces),
                            .memory = plans.memory(),
                            .separate_memory = plans.separate_memory()};
  MemoryProposal proposal{
      .choice = choose_memory(search, [&](const MemoryOptions& each) { return plans.plan(each); }),
      .memory = plans.memory(),
      .of = plans.of()};
  return proposal;
}

std::string sentence_of(const MemoryProposal& proposal) {
  const MemoryCandidate* best = proposal.choice.best();
  if (best != nullptr) {
    const std::string flags = flags_of(best->options);
    return fmt::format(
        "{} would fit ({} of {}): set that in compile, or let it be found with "
        ".fit_memory = \"auto\" (--fit auto)",
        flags.empty() ? "as it is, it" : flags, gib_text(best->bytes), gib_text(proposal.memory));
  }
  if (proposal.choice.candidates.empty()) return "no combination of options would fit";
  const MemoryCandidate& nearest = proposal.choice.candidates.front();
  return fmt::format(
      "no combination of options would fit into {}; the smallest, {}, needs {}: use a smaller "
      "batch or model, 16-bit precision, or more replicas",
      gib_text(proposal.memory), flags_of(nearest.options), gib_text(nearest.bytes));
}

}  // namespace lockstep
