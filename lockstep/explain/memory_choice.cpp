#include "lockstep/explain/memory_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using OptionTexts = std::vector<std::pair<std::string, std::string>>;

OptionTexts option_texts(const MemoryOptions& options) {
  OptionTexts texts;
  if (options.accumulate != 1) {
    texts.emplace_back("accumulate",
                       options.accumulate == 0 ? "auto" : std::to_string(options.accumulate));
  }
  if (options.recompute.kind != Recompute::Kind::None) {
    texts.emplace_back("recompute", options.recompute.str());
  }
  if (options.shard != 0) texts.emplace_back("shard", std::to_string(options.shard));
  if (options.gather_bytes != 0) {
    texts.emplace_back("gather-budget", fmt::format("{}B", options.gather_bytes));
  }
  if (options.offload == Offload::Optimizer) texts.emplace_back("offload", "optimizer");
  if (options.gradients) {
    texts.emplace_back("gradient-dtype",
                       *options.gradients == DType::BF16 ? "bfloat16" : "float16");
  }
  return texts;
}

// The ways to recompute that are tried, from the least work on.
std::vector<Recompute> recomputations(const MemorySearch& search) {
  if (search.asked.recompute.kind != Recompute::Kind::None) return {search.asked.recompute};
  Recompute budget;
  budget.kind = Recompute::Kind::Budget;
  budget.budget_bytes = search.memory;
  return {Recompute(), budget, Recompute("blocks")};
}

class MemorySearcher {
 public:
  MemorySearcher(const MemorySearch& search, const PlanMemoryOf& plan)
      : search_(search), plan_(plan) {}

  MemoryChoice run() {
    const int first = search_.asked.shard;
    const int last = search_.ranks > 1 && first == 0 ? 3 : first;
    const bool may_offload = search_.separate_memory && search_.asked.offload == Offload::None;
    for (int shard = first; shard <= last; ++shard) {
      for (const bool offload : {false, true}) {
        if (offload && !may_offload) continue;
        MemoryOptions options = search_.asked;
        options.shard = shard;
        if (offload) options.offload = Offload::Optimizer;
        try_recomputations(options);
      }
    }
    std::ranges::stable_sort(choice_.candidates, [](const auto& a, const auto& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? a.seconds < b.seconds : a.bytes < b.bytes;
    });
    return std::move(choice_);
  }

 private:
  void try_recomputations(MemoryOptions options) {
    std::int64_t enough = search_.samples + 1;  // micro-batches with which less work fits
    for (const Recompute& recompute : recomputations(search_)) {
      options.recompute = recompute;
      enough = std::min(enough, try_micro_batches(options, enough));
    }
  }

  // The fewest micro-batches, below `below`, that fit; the smallest candidate if none do.
  std::int64_t try_micro_batches(MemoryOptions options, std::int64_t below) {
    const std::int64_t asked = std::max<std::int64_t>(1, search_.asked.accumulate);
    const bool given = search_.asked.accumulate > 1;
    std::optional<MemoryCandidate> smallest;
    for (std::int64_t count = asked; count < below; count = next(count)) {
      options.accumulate = count;
      MemoryCandidate candidate;
      try {
        candidate = plan_(options);
      } catch (const UsageError&) {
        if (given || count == search_.samples) break;
        continue;  // a budget that more micro-batches may meet
      }
      candidate.options = options;
      candidate.fits = candidate.bytes <= search_.memory;
      if (candidate.fits) {
        choice_.candidates.push_back(candidate);
        return count;
      }
      if (!smallest || candidate.bytes < smallest->bytes) smallest = candidate;
      if (given || count == search_.samples) break;
    }
    if (smallest) choice_.candidates.push_back(*smallest);
    return below;
  }

  std::int64_t next(std::int64_t count) const {
    return count < search_.samples ? std::min(2 * count, search_.samples) : count + 1;
  }

  const MemorySearch& search_;
  const PlanMemoryOf& plan_;
  MemoryChoice choice_;
};

}  // namespace

MemoryChoice choose_memory(const MemorySearch& search, const PlanMemoryOf& plan) {
  return MemorySearcher(search, plan).run();
}

std::string flags_of(const MemoryOptions& options) {
  std::string text;
  for (const auto& [name, value] : option_texts(options)) {
    text += fmt::format("{}--{} {}", text.empty() ? "" : " ", name, value);
  }
  return text;
}

std::string words_of(const MemoryOptions& options) {
  std::string text;
  for (const auto& [name, value] : option_texts(options)) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace lockstep
