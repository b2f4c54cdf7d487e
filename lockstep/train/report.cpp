// History::report: where the time went, and what to do about it. Advice is given only if it would
// make a difference and its reader can follow it: a program's user has flags, not C++ options.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/explain/attribute.h"
#include "lockstep/explain/explanation_text.h"
#include "lockstep/train/history.h"

namespace lockstep {
namespace {

constexpr double kWorthNaming = 0.05;
constexpr double kMuch = 0.15;
// With fewer steps the timings are not reliable.
constexpr std::int64_t kEnoughSteps = 50;

std::string percent(double share) {
  return fmt::format("{:.0f}%", 100 * share);
}

class Remarks {
 public:
  Remarks(const History& history, const ReportOptions& options)
      : history_(history), part_(history.attribution), program_(options.program) {}

  std::string text() {
    non_finite_loss();
    overflows();
    slow_workers();
    slow_replica();
    communication();
    input();
    skipped_samples();
    start();
    validation();
    checkpoint();
    host();
    if (text_.empty()) computation();
    return text_;
  }

 private:
  // `cpp` is for readers who write a program, `flags` for users of ours.
  const char* either(const char* cpp, const char* flags) const { return program_ ? flags : cpp; }

  void non_finite_loss() {
    if (!history_.first_non_finite_step) return;
    text_ += fmt::format(
        "warning: the loss was not a finite number at step {} (counted from the beginning of "
        "training).\n  Look for NaN or very large numbers in the data; {}.\n",
        *history_.first_non_finite_step,
        either("lower the learning rate, or clip gradients\n  (.global_clipnorm = 1)",
               "lower --learning-rate"));
  }

  void overflows() {
    if (history_.steps == 0 || history_.overflowed_steps * 10 < history_.steps) return;
    text_ += fmt::format(
        "warning: {} of {} steps were skipped because gradients overflowed in 16 bits: {} does "
        "not\n  overflow; a lower learning rate may help, too.\n",
        history_.overflowed_steps, history_.steps,
        either(".precision = \"mixed_bfloat16\"", "--precision mixed_bfloat16"));
  }

  void slow_workers() {
    for (const SlowWorker& slow : history_.slow_workers) {
      text_ += fmt::format(
          "worker {} was {:.1f}x slower than the others in {} of {} steps: they waited {:.1f} s "
          "for "
          "it, {} of\n  the time. ",
          slow.worker, slow.times, std::min(slow.steps, history_.steps), history_.steps,
          slow.seconds, percent(history_.seconds > 0 ? slow.seconds / history_.seconds : 0.0));
      if (!history_.balanced) {
        text_ += fmt::format("{} gives it less to do; else look",
                             either(".balance = Balance::Auto", "--balance auto"));
      } else {
        text_ += "Look";
      }
      text_ += " at what else runs on its host.\n";
    }
  }

  // The replica that the others waited for, if they waited long enough to matter.
  void slow_replica() {
    const std::vector<ReplicaTime>& replicas = history_.replicas;
    if (replicas.size() < 2 || !history_.slow_workers.empty()) return;
    const auto wait = [](const ReplicaTime& replica) { return replica.attribution.wait; };
    const auto slowest = std::ranges::min_element(replicas, {}, wait);
    const auto most = std::ranges::max_element(replicas, {}, wait);
    if (wait(*most) - wait(*slowest) < kWorthNaming) return;
    text_ += fmt::format("{} is the slowest replica: {} waited for it {} of the time. ",
                         slowest->device, most->device, percent(wait(*most)));
    if (!history_.balanced) {
      text_ += fmt::format("{} gives each replica\n  the share that it can do; else look",
                           either(".balance = Balance::Auto", "--balance auto"));
    } else {
      text_ += "Look";
    }
    text_ += " at what else runs on its cores.\n";
  }

  void communication() {
    if (part_.communication <= 0.1) return;
    text_ += fmt::format(
        "Adding up gradients took {} of the time: a larger batch per replica{} makes it less.\n",
        percent(part_.communication), either("", " (--batch-per-replica)"));
  }

  void input() {
    if (part_.input <= 0.1) return;
    text_ += fmt::format("The steps waited for input {} of the time", percent(part_.input));
    if (!history_.input) {
      text_ += ".\n";
      return;
    }
    text_ += fmt::format("; what limits it: {}.\n", history_.input->limiting);
    text_ += either(fmt::format("  {}\n", history_.input->advice).c_str(), "");
  }

  void skipped_samples() {
    if (history_.skipped == 0 || !history_.input) return;
    text_ += fmt::format("Passed over {} samples because of errors; in the last pass:\n",
                         history_.skipped);
    for (const std::string& what : history_.input->skipped_first) text_ += "  " + what + "\n";
  }

  void start() {
    if (part_.start <= kMuch) return;
    text_ += fmt::format(
        "The start (planning, measuring algorithms, opening data) took {:.1f} s, {} of the time; "
        "it is\n  paid once, however long the run.\n",
        part_.start * history_.seconds, percent(part_.start));
    if (history_.planned > 4 && !program_) {
      text_ += fmt::format(
          "  {} steps were planned, since batches came in as many shapes: padded_batch or\n  "
          "drop_remainder give them fewer.\n",
          history_.planned);
    }
  }

  void validation() {
    if (part_.validation <= 0.3 || program_ || history_.steps < kEnoughSteps) return;
    text_ += fmt::format(
        "Validation took {} of the time: validation_steps takes less of the data, larger batches "
        "take\n  less time for it.\n",
        percent(part_.validation));
  }

  void checkpoint() {
    if (part_.checkpoint <= kMuch || history_.steps < kEnoughSteps) return;
    text_ += fmt::format(
        "Saving took {} of the time: save less often ({}).\n", percent(part_.checkpoint),
        either("every_steps of ModelCheckpoint, steps_per_epoch", "more --steps in an epoch"));
  }

  void host() {
    if (part_.host <= kMuch || history_.steps < kEnoughSteps) return;
    const double callbacks =
        history_.seconds > 0 ? history_.callback_seconds / history_.seconds : 0.0;
    if (callbacks > part_.host / 2) {
      if (!program_) {
        text_ += fmt::format("Callbacks took {} of the time: let them do less at every step.\n",
                             percent(callbacks));
      }
      return;
    }
    text_ +=
        fmt::format("{} of the time was spent between kernels: a larger batch{} makes it less.\n",
                    percent(part_.host), either("", " (--batch-per-replica)"));
  }

  void computation() {
    if (part_.compute < 0.5) return;
    if (history_.top_ops.empty()) {  // a GPU runs the step as a whole
      text_ = fmt::format(
          "The time goes into computation. `lockstep bench --ops` shows which nodes take it; "
          "16-bit precision{},\n  more devices or a smaller model would make it faster.\n",
          either("", " (--precision)"));
    } else {
      text_ =
          "The time goes into computation. The nodes above are where to look; more cores or a\n  "
          "smaller model would make it faster.\n";
    }
  }

  const History& history_;
  const Attribution& part_;
  bool program_;
  std::string text_;
};

std::string replica_table(const std::vector<ReplicaTime>& replicas) {
  std::string text = fmt::format("  {:<10}", "replica");
  const auto width = [](const char* name) { return std::max(std::string(name).size() + 2, 9ul); };
  for (const auto& [name, share] : parts_of({})) text += fmt::format("{:>{}}", name, width(name));
  text += fmt::format("{:>12}\n", "samples");
  for (const ReplicaTime& replica : replicas) {
    text += fmt::format("  {:<10}", replica.device);
    for (const auto& [name, share] : parts_of(replica.attribution)) {
      text += fmt::format("{:>{}.1f}%", 100 * share, width(name) - 1);
    }
    text += fmt::format("{:>12}\n", replica.samples);
  }
  return text;
}

}  // namespace

std::string History::report(const ReportOptions& options) const {
  std::string text = fmt::format("epochs {}, steps {}, samples {} in {:.2f} s ({:.0f} samples/s)\n",
                                 epochs.size(), steps, samples, seconds,
                                 seconds > 0 ? static_cast<double>(samples) / seconds : 0.0);
  text += fmt::format("step: median {:.3f} ms, 99th percentile {:.3f} ms; memory {:.1f} MB\n",
                      median_step_ms(), p99_step_ms(), static_cast<double>(peak_bytes) * 1e-6);
  if (micro_batches > 1) {
    text += fmt::format(
        "accumulated gradients over {} micro-batches per step; reduced and updated once\n",
        micro_batches);
  }
  for (const Recovery& recovery : recoveries) {
    text += fmt::format(
        "{}: {} worker{} went on at step {} after {:.1f} s, and trained {} step{} once more\n",
        recovery.cause, recovery.workers, recovery.workers == 1 ? "" : "s", recovery.step,
        recovery.seconds, recovery.lost_steps, recovery.lost_steps == 1 ? "" : "s");
  }
  if (loss_scale) {
    text += fmt::format("skipped {} steps on overflow; loss scale now {:g}\n", overflowed_steps,
                        *loss_scale);
  }
  if (noise_scale) {
    text += fmt::format(
        "{} (measuring took {:.1f}% of the time)\n",
        sentence_about(*noise_scale, static_cast<double>(batch_size), rate_rule_of(optimizer)),
        100 * noise_scale_seconds / std::max(seconds, 1e-9));
  }
  text += "where the time went\n";
  for (const auto& [name, share] : parts_of(attribution)) {
    if (share <= 0.0) continue;
    text += fmt::format("  {:<14}{:6.1f} %  {:9.3f} s\n", name, 100 * share, share * seconds);
  }
  if (replicas.size() > 1) text += replica_table(replicas);
  if (!top_ops.empty()) text += "slowest nodes (share of computation, last steps)\n";
  for (const OpTime& op : top_ops) {
    text += fmt::format("  {:<40}{:6.1f} %\n", op.name, 100 * op.share);
  }
  if (options.explanation != nullptr) {
    text += paragraph_of(*options.explanation);
  } else if (profile != nullptr && profile->steps > 0) {
    text += paragraph_of(explain(*profile));
  }
  return text + Remarks(*this, options).text();
}

}  // namespace lockstep
