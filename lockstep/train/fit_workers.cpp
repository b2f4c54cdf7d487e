// What the workers of a job agree on in fit: who has samples, when to stop, what callbacks do.
#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/train/fit_run.h"

namespace lockstep {
namespace {

bool asked(const StepVote& vote) {
  return vote.stop || vote.interrupted;
}

}  // namespace

double FitRun::of_chief(double mine) const {
  return session_.world().workers() == 1 ? mine : gather_numbers({&mine, 1}).front();
}

bool FitRun::asked_to_stop() {
  World& world = session_.world();
  if (world.workers() > 1) {
    const StepVotes votes = take_votes(
        world, [this] { return StepVote{.stop = impl_.stopping, .interrupted = interrupted()}; });
    impl_.stopping = votes.any(&StepVote::stop);
    history_.interrupted = votes.any(&StepVote::interrupted);
    return impl_.stopping || history_.interrupted;  // not asked again: a signal may have come since
  }
  return impl_.stopping || interrupted();
}

void FitRun::restore_worker(const std::vector<std::string>& positions) {
  const World& world = session_.world();
  const bool same = reads_own_files() && std::ssize(positions) == world.workers();
  if (same) return iterator_->restore(positions[static_cast<std::size_t>(world.worker())]);
  const int shards = reads_own_files() ? world.workers() : 1;
  iterator_->restore(
      reshard(positions, shards)[static_cast<std::size_t>(shards > 1 ? world.worker() : 0)]);
}

// A bit per callback; those after the 64th share the last one.
std::uint64_t FitRun::callbacks_due() {
  std::uint64_t due = 0;
  ++session_.step;  // callbacks are asked as if the step had been run
  for (std::size_t i = 0; i < callbacks_.size(); ++i) {
    if (callbacks_[i]->needs_sync(model_, at_.epoch_step)) {
      due |= std::uint64_t{1} << std::min<std::size_t>(i, 63);
    }
  }
  --session_.step;
  return due;
}

StepVote FitRun::vote(std::optional<Element>& element) {
  StepVote vote{.has_batch = element.has_value(),
                .due = callbacks_due(),
                .busy_s = std::exchange(busy_s_, -1.0)};
  if (!element) return vote;
  vote.rows = element->front().shape()[0];
  const auto same = [](const Tensor& part, const ValueType& type) {
    return part.dtype() == type.dtype && part.shape() == type.shape;
  };
  vote.measured = noise_due();
  vote.compiled = std::ranges::equal(*element, last_.types, same) &&
                  impl_.steps.holds(session_, last_.signatures, last_.micro_batches);
  return vote;
}

void FitRun::observe_workers(const StepVotes& votes) {
  const World& world = session_.world();
  std::vector<WorkerStep> workers;
  std::size_t rank = 0;
  for (std::size_t w = 0; w < votes.all.size(); ++w) {
    workers.push_back({.busy_s = votes.all[w].busy_s});
    for (int i = 0; i < world.ranks_of(static_cast<int>(w)) && rank < last_.pieces.size(); ++i) {
      workers.back().rows = std::max(workers.back().rows, last_.pieces[rank++].size());
    }
  }
  const double step_s = history_.step_ms.empty() ? 0.0 : history_.step_ms.back() * 1e-3;
  stragglers_.observe(workers, step_s);
}

// A worker that was asked to stop takes no element, so that the position which is saved is right.
// If all were asked, fit ends now; otherwise they run one more step, for which the others already
// have their elements, and all end after it.
std::optional<FitRun::Turn> FitRun::agree_on_turn() {
  World& world = session_.world();
  std::optional<Element> element;
  bool taken = false;
  bool last_step = false;
  for (;;) {
    const StepVotes votes = take_votes(world, [&] {
      impl_.writer.check();
      const StepVote now{.stop = impl_.stopping, .interrupted = interrupted()};
      if (asked(now) && !last_step) return now;
      if (!taken && !steps_done()) element = next_of_pass();
      taken = true;
      StepVote mine = vote(element);
      mine.stop = now.stop;
      mine.interrupted = now.interrupted;
      return mine;
    });
    observe_workers(votes);
    if (std::ranges::any_of(votes.all, asked)) {
      const bool all = std::ranges::all_of(votes.all, asked);
      if (all || last_step) {
        impl_.stopping = votes.any(&StepVote::stop);
        history_.interrupted = votes.any(&StepVote::interrupted);
      }
      if (all && !last_step) return std::nullopt;
      if (!std::exchange(last_step, true)) continue;
    }
    if (votes.any(&StepVote::has_batch)) {
      given_in_pass_ = std::max<std::int64_t>(given_in_pass_, 1);
      Turn turn{.element = element ? std::move(*element) : data_.without_rows(),
                .sync = false,
                .compiled = votes.every(&StepVote::compiled),
                .measured = votes.all.front().measured};
      for (const StepVote& vote : votes.all) {
        if (vote.due != 0) turn.sync = true;
        turn.rows_of_worker.push_back(vote.rows);
      }
      for (std::size_t i = 0; i < callbacks_.size() && i < 63; ++i) {
        callbacks_[i]->agreed_sync((votes.all.front().due >> i & 1) != 0);
      }
      if (!data_.own_rows_only) {
        const auto [least, most] = std::ranges::minmax(turn.rows_of_worker);
        require(least == most,
                "[fit] the workers have batches of {} and {} rows of the same data set: its order "
                "must be the same on all of them",
                least, most);
        turn.rows_of_worker.clear();
      }
      return turn;
    }
    if (!options_.steps_per_epoch || steps_done()) {
      if (!steps_done()) expect_batches_in_pass();
      return Turn{};
    }
    end_pass();
    taken = false;
  }
}

}  // namespace lockstep
