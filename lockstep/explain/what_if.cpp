#include "lockstep/explain/what_if.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

bool is_gradient_sum(const MeasuredInstruction& instruction) {
  return instruction.collective == "all_reduce" && instruction.stream == kCommunicationStream;
}

PerPiece times(const PerPiece& piece, double factor) {
  return {.fixed = piece.fixed * factor, .per_sample = piece.per_sample * factor};
}

PerPiece sum(const PerPiece& a, const PerPiece& b) {
  return {.fixed = a.fixed + b.fixed, .per_sample = a.per_sample + b.per_sample};
}

bool adds_up(const MeasuredInstruction& instruction) {
  return instruction.stream == kCommunicationStream &&
         (instruction.collective == "all_reduce" || instruction.collective == "reduce_scatter");
}

// Whether each instruction is, or needs directly or not, a collective of gradients.
std::vector<bool> after_gradients(const MeasuredStep& step) {
  std::vector<bool> follows(step.instructions.size());
  for (std::size_t i = 0; i < follows.size(); ++i) {
    const MeasuredInstruction& each = step.instructions[i];
    // Parameters are gathered before they are used, and not after gradients.
    const bool beside = each.stream == kCommunicationStream && each.collective != "all_gather";
    follows[i] = beside || std::ranges::any_of(each.after, [&](int before) {
                   return static_cast<bool>(follows[static_cast<std::size_t>(before)]);
                 });
  }
  return follows;
}

// Cuts the gradients anew and writes the instructions in an order in which they can run.
class Rebucketing {
 public:
  Rebucketing(const MeasuredStep& step, BucketSizes sizes)
      : step_(step), now_of_(step.instructions.size(), -1) {
    find_parts();
    find_ancestors();
    cut(sizes);
  }

  std::vector<MeasuredInstruction> run() {
    const int count = static_cast<int>(step_.instructions.size());
    write_ready_buckets();
    for (int i = 0; i < count; ++i) {
      if (!is_part(i)) write_or_postpone(i);
    }
    ensure(postponed_.empty(), "[what-if] {} instructions wait for what comes after them",
           postponed_.size());
    return std::move(written_);
  }

 private:
  struct Bucket {
    std::vector<CarriedValue> values;  // `after` in the numbers of the given step
    double bytes = 0;
    int now = -1;     // where the collective was written
    int update = -1;  // and its update
  };

  bool is_part(int i) const {
    return is_sum_[static_cast<std::size_t>(i)] || is_update_[static_cast<std::size_t>(i)];
  }

  // The collectives, and the kernels beside them that use the result of one: updates.
  void find_parts() {
    is_sum_.resize(step_.instructions.size());
    is_update_.resize(step_.instructions.size());
    for (std::size_t i = 0; i < step_.instructions.size(); ++i) {
      const MeasuredInstruction& each = step_.instructions[i];
      if (is_gradient_sum(each)) {
        is_sum_[i] = true;
        all_bytes_ += static_cast<double>(each.wire_bytes);
        if (prototype_ < 0) prototype_ = static_cast<int>(i);
        continue;
      }
      const bool updates = each.stream == kCommunicationStream && each.collective.empty() &&
                           std::ranges::any_of(each.after, [&](int before) {
                             return static_cast<bool>(is_sum_[static_cast<std::size_t>(before)]);
                           });
      if (!updates) continue;
      is_update_[i] = true;
      updates_ = sum(updates_, each.seconds);
      if (update_prototype_ < 0) update_prototype_ = static_cast<int>(i);
      for (const int before : each.after) {
        if (!is_part(before)) update_after_.push_back(before);
      }
    }
  }

  void cut(BucketSizes sizes) {
    std::vector<CarriedValue> values;
    for (std::size_t i = 0; i < step_.instructions.size(); ++i) {
      if (!is_sum_[i]) continue;
      const MeasuredInstruction& each = step_.instructions[i];
      if (each.carries.empty()) {
        const int last = each.after.empty() ? -1 : std::ranges::max(each.after);
        values.push_back({.bytes = each.wire_bytes, .after = last});
      }
      values.insert(values.end(), each.carries.begin(), each.carries.end());
    }
    std::ranges::stable_sort(values, {}, &CarriedValue::after);
    std::vector<std::size_t> bytes;
    for (const CarriedValue& value : values) bytes.push_back(static_cast<std::size_t>(value.bytes));
    std::size_t begin = 0;
    for (const std::size_t end : cut_into_buckets(bytes, sizes)) {
      Bucket& bucket = buckets_.emplace_back();
      for (; begin < end; ++begin) {
        bucket.values.push_back(values[begin]);
        bucket.bytes += static_cast<double>(values[begin].bytes);
      }
    }
  }

  bool known(int i) const { return now_of(i) >= 0; }
  int now_of(int i) const {
    if (is_sum_[static_cast<std::size_t>(i)]) return last_bucket_of(i).now;
    if (is_update_[static_cast<std::size_t>(i)]) return last_bucket_of(sum_of_update(i)).update;
    return now_of_[static_cast<std::size_t>(i)];
  }
  int sum_of_update(int i) const {
    const std::vector<int>& after = step_.instructions[static_cast<std::size_t>(i)].after;
    return *std::ranges::find_if(after, [&](int each) {
      return static_cast<bool>(is_sum_[static_cast<std::size_t>(each)]);
    });
  }

  // What gradients are computed from. If such an instruction waits for a sum, it does for memory
  // that the sum occupies, and another plan would have it elsewhere.
  void find_ancestors() {
    is_ancestor_.resize(step_.instructions.size());
    for (std::size_t i = step_.instructions.size(); i-- > 0;) {
      const MeasuredInstruction& each = step_.instructions[i];
      if (is_sum_[i]) {
        for (const CarriedValue& value : each.carries) mark(value.after);
        if (each.carries.empty()) std::ranges::for_each(each.after, [&](int b) { mark(b); });
      } else if (is_ancestor_[i]) {
        for (const int before : each.after) mark(before);
      }
    }
  }
  void mark(int i) {
    if (i >= 0 && !is_part(i)) is_ancestor_[static_cast<std::size_t>(i)] = true;
  }
  // The bucket that now carries the value of a collective that was finished last.
  const Bucket& last_bucket_of(int i) const {
    const MeasuredInstruction& each = step_.instructions[static_cast<std::size_t>(i)];
    int last = each.after.empty() ? -1 : std::ranges::max(each.after);
    if (!each.carries.empty())
      last = std::ranges::max(each.carries, {}, &CarriedValue::after).after;
    for (const Bucket& bucket : buckets_) {
      if (bucket.values.back().after >= last) return bucket;
    }
    return buckets_.back();
  }

  void write_or_postpone(int i) {
    MeasuredInstruction each = step_.instructions[static_cast<std::size_t>(i)];
    if (is_ancestor_[static_cast<std::size_t>(i)]) {
      std::erase_if(each.after, [&](int before) { return is_part(before) && !known(before); });
    }
    if (!std::ranges::all_of(each.after, [&](int before) { return known(before); })) {
      postponed_.push_back(i);
      return;
    }
    for (int& before : each.after) before = now_of(before);
    for (CarriedValue& value : each.carries) {
      if (value.after >= 0) value.after = now_of(value.after);
    }
    now_of_[static_cast<std::size_t>(i)] = static_cast<int>(written_.size());
    written_.push_back(std::move(each));
    write_ready_buckets();
  }

  void write_ready_buckets() {
    while (next_ < buckets_.size() && is_ready(buckets_[next_])) {
      write_bucket(buckets_[next_++]);
      for (const int i : std::exchange(postponed_, {})) write_or_postpone(i);
    }
  }

  bool is_ready(const Bucket& bucket) const {
    return std::ranges::all_of(bucket.values, [&](const CarriedValue& value) {
      return value.after < 0 || known(value.after);
    });
  }

  void write_bucket(Bucket& bucket) {
    MeasuredInstruction made = step_.instructions[static_cast<std::size_t>(prototype_)];
    made.after.clear();
    made.carries.clear();
    for (const CarriedValue& value : bucket.values) {
      const int after = value.after < 0 ? -1 : now_of(value.after);
      made.carries.push_back({.bytes = value.bytes, .after = after});
      if (after >= 0 && std::ranges::find(made.after, after) == made.after.end()) {
        made.after.push_back(after);
      }
    }
    made.wire_bytes = static_cast<std::int64_t>(bucket.bytes);
    bucket.now = static_cast<int>(written_.size());
    written_.push_back(std::move(made));
    if (update_prototype_ < 0) return;
    MeasuredInstruction update = step_.instructions[static_cast<std::size_t>(update_prototype_)];
    const double part = all_bytes_ > 0 ? bucket.bytes / all_bytes_ : 0;
    update.seconds = times(updates_, part);
    update.after = {bucket.now};
    for (const int before : update_after_) {
      const bool here = now_of_[static_cast<std::size_t>(before)] >= 0;
      const int now = now_of_[static_cast<std::size_t>(before)];
      if (here && std::ranges::find(update.after, now) == update.after.end()) {
        update.after.push_back(now);
      }
    }
    bucket.update = static_cast<int>(written_.size());
    written_.push_back(std::move(update));
  }

  const MeasuredStep& step_;
  std::vector<bool> is_sum_, is_update_, is_ancestor_;
  double all_bytes_ = 0;
  PerPiece updates_;
  std::vector<int> update_after_;  // what updates need besides their sums
  int prototype_ = -1;
  int update_prototype_ = -1;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;  // bucket to be written
  std::vector<int> now_of_;
  std::vector<int> postponed_;
  std::vector<MeasuredInstruction> written_;
};

}  // namespace

MeasuredStep with_batch(const MeasuredStep& step, std::int64_t batch) {
  require(batch > 0, "[what-if] a batch of {} samples", batch);
  MeasuredStep result = step;
  const double factor = static_cast<double>(batch) / static_cast<double>(step.batch);
  for (MeasuredInstruction& each : result.instructions) {
    // Work that does not depend on the samples is that of instructions whose time does not.
    const double at = each.seconds.at(static_cast<double>(step.batch));
    const double grows =
        at > 0 ? each.seconds.per_sample * static_cast<double>(step.batch) / at : 1;
    const double by = 1 + (factor - 1) * grows;
    each.flops *= by;
    each.bytes *= by;
  }
  result.batch = batch;
  return result;
}

MeasuredStep with_buckets(const MeasuredStep& step, BucketSizes sizes) {
  if (std::ranges::none_of(step.instructions, is_gradient_sum)) return step;
  MeasuredStep result = step;
  result.instructions = Rebucketing(step, sizes).run();
  return result;
}

MeasuredStep with_16_bit_gradients(const MeasuredStep& step) {
  MeasuredStep result = step;
  for (MeasuredInstruction& each : result.instructions) {
    if (!adds_up(each)) continue;
    each.wire_bytes /= 2;
    for (CarriedValue& value : each.carries) value.bytes /= 2;
  }
  return result;
}

MeasuredStep with_accumulation(const MeasuredStep& step, int micro_batches) {
  require(micro_batches >= 1, "[what-if] {} micro-batches", micro_batches);
  if (micro_batches == 1) return step;
  const double k = micro_batches;
  const std::vector<bool> follows = after_gradients(step);
  MeasuredStep result = step;
  result.batch = step.batch * micro_batches;
  // All but the last of them come first, as one.
  MeasuredInstruction earlier{.name = "earlier micro-batches", .op = "accumulate"};
  double gradient_bytes = 0;
  for (std::size_t i = 0; i < follows.size(); ++i) {
    MeasuredInstruction& each = result.instructions[i];
    for (int& before : each.after) ++before;
    for (CarriedValue& value : each.carries) {
      if (value.after >= 0) ++value.after;
    }
    if (adds_up(each)) gradient_bytes += static_cast<double>(each.wire_bytes);
    if (follows[i]) continue;
    // k pieces of the batch: the fixed part k times, the rest as before, per sample.
    earlier.seconds.fixed += each.seconds.fixed * (k - 1);
    earlier.seconds.per_sample += each.seconds.per_sample * (k - 1) / k;
    earlier.flops += each.flops * (k - 1);
    earlier.bytes += each.bytes * (k - 1);
    each.seconds.per_sample /= k;
  }
  result.instructions.insert(result.instructions.begin(), std::move(earlier));
  const auto in_micro_batches = [&](PerPiece& memory) {
    memory.fixed += gradient_bytes;
    memory.per_sample /= k;
  };
  in_micro_batches(result.memory);
  for (RankedMemory& each : result.memory_by_ranks) in_micro_batches(each.bytes);
  result.options.accumulate = step.options.accumulate * micro_batches;
  result.host_seconds.per_sample /= k;
  return result;
}

MeasuredStep with_ratios(const MeasuredStep& step, const OpRatios& ratios, double otherwise) {
  MeasuredStep result = step;
  for (MeasuredInstruction& each : result.instructions) {
    if (!each.collective.empty()) continue;
    const auto found = ratios.find(each.op);
    each.seconds = times(each.seconds, found == ratios.end() ? otherwise : found->second);
  }
  return result;
}

OpRatios ratios_between(const MeasuredStep& first, const MeasuredStep& second) {
  const auto samples = static_cast<double>(first.batch);
  std::map<std::string, std::pair<double, double>> seconds;
  for (const MeasuredInstruction& each : first.instructions) {
    if (each.collective.empty()) seconds[each.op].first += each.seconds.at(samples);
  }
  for (const MeasuredInstruction& each : second.instructions) {
    if (each.collective.empty()) seconds[each.op].second += each.seconds.at(samples);
  }
  OpRatios ratios;
  for (const auto& [op, both] : seconds) {
    if (both.first > 0 && both.second > 0) ratios[op] = both.second / both.first;
  }
  return ratios;
}

MeasuredStep with_faster_device(const MeasuredStep& step, double factor) {
  require(factor > 0, "[what-if] a device that is {} times as fast", factor);
  return with_ratios(step, {}, 1 / factor);
}

MeasuredStep without_jitter(const MeasuredStep& step) {
  MeasuredStep result = step;
  result.jitter.clear();
  return result;
}

}  // namespace lockstep
