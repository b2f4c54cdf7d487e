// Survival: what a call of fit keeps so that it goes on when a worker fails. Every worker has a
// copy of the state of the run in its own memory, taken after the same step on all of them, with
// the input positions of all. After a failure the workers that are left, and those that came
// instead, go on from the newest copy that all of the former have; the latter receive it.
//
// A program may call fit several times. The last copy of a call is that of its end, which is kept
// until all have one of the next call. A worker that comes in a later call begins its program with
// the first: calls that the others have done return at once, with their epochs, and the state comes
// with the copy of the call that the others are in.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/attribution_meter.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {

struct StateCopy {
  std::int64_t call = 0;  // of fit, from 1
  std::int64_t step = 0;
  std::string bytes = {};  // a checkpoint
  // Of this worker's history.
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::size_t epochs = 0;
};

// A call of fit that is over.
struct DoneCall {
  int model = 0;  // ModelImpl::number
  std::vector<EpochLog> epochs = {};
};

// What a worker remembers from one call of fit to the next, where the world survives failures.
struct FitMemory {
  std::int64_t calls = 0;  // of fit that have begun
  int models = 0;          // that they trained
  std::deque<StateCopy> copies = {};
  std::vector<DoneCall> done = {};
  VariableRef iterations = {};  // of the optimizer of the call before
  // Of a newcomer that is not yet in the call that the copy is for; 0: it is.
  std::int64_t awaited_call = 0;
};

class Survival {
 public:
  // `every`: FitOptions::copy_state_every.
  Survival(ModelImpl& impl, std::int64_t every);

  // Whether a copy is due before the next step.
  bool due() const;
  // Copies the state, of which `where` is the position; then workers that came meanwhile may take
  // part (World::admit_newcomers). Collective.
  void keep(const Progress& where, const History& history);
  // The same, of the end of this call.
  void end(const Progress& where, const History& history);

  // Where this fit begins: agrees with the other workers on a copy to go on from. Collective.
  enum class Meeting {
    Begin,          // there is none: nobody has begun yet
    GoOn,           // restore()
    BeginFromCopy,  // it is of the end of the call before: restore_values()
    Done            // this call is over: history_of_done_call()
  };
  Meeting meet();
  // Sets the state of that copy, and returns the position; `accept` may throw to reject it.
  Progress restore(const std::function<void(const Progress&)>& accept);
  void restore_values();
  // What is known of the time before it.
  History history() const;
  History history_of_done_call() const;

  // A worker has failed. Drops what belongs to the old generation, and meets the next one.
  void renew(const History& so_far);
  // The first step after that is done.
  void note_step(History& history);

  const AttributionMeter& meter() const { return meter_; }

 private:
  struct Told;
  std::int64_t next_interval(std::int64_t copy_ns) const;
  std::string mine() const;
  // The newest copy that all who have some have.
  std::optional<StateCopy> common_copy(const std::vector<Told>& all, int* source) const;
  // Gives it to those who have none, with what newcomers must know.
  void hand_over(const StateCopy& copy, int source);
  void expect_same_model(const Told& others, const StateCopy& copy) const;
  Meeting take_up(std::int64_t call);
  TensorFile contents_of_copy(std::map<std::string, Tensor>* parts) const;
  void set_parts(const NamedVariables& variables, const std::map<std::string, Tensor>& parts);
  void note_restored();

  ModelImpl& impl_;
  FitMemory& memory_;
  const std::int64_t call_;
  std::int64_t every_;
  AttributionMeter meter_;
  std::int64_t next_ = 0;  // the step before which the next one is taken
  std::int64_t kept_ns_ = 0;
  std::int64_t kept_step_ = 0;
  History before_;  // until the last failure
  bool renewed_ = false;
  VariableRef iterations_before_;
  std::optional<Recovery> recovery_;
  std::int64_t failed_ns_ = 0;
};

}  // namespace lockstep
