// The noise scale in fit. On several replicas a sampled step is the training step with norms of
// gradients as further outputs. On one replica the gradients of both halves of the batch are
// computed once more before the training step, which stays as it is. Either way training has the
// same bits as without.
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/memory_error.h"
#include "lockstep/train/fit_run.h"

namespace lockstep {
namespace {

double squared(double value) {
  return value * value;
}

}  // namespace

bool FitRun::noise_due() const {
  return noise_.due(session_.step, !last_.pieces.empty() && last_.pieces == noise_pieces_);
}

// Unless the caller chose the steps, only batches of which there was one just before: a short last
// one is not worth a plan of its own.
bool FitRun::samples_noise(const Turn& turn, const StepRequest& plain) const {
  if (!turn.measured.value_or(noise_due())) return false;
  return noise_.chosen() || plain.all_pieces == last_.pieces;
}

CompiledStep& FitRun::plan_with_norms(const StepRequest& plain) {
  // The plain step decides the layouts of variables.
  if (plain.all_pieces != last_.pieces) plan_step(plain);
  const std::int64_t begin = now_ns();
  CompiledStep& step = impl_.step_for(with_norms(plain));
  if (step.planned) {
    ++history_.planned;
    noise_.compiled_sample(static_cast<double>(now_ns() - begin) * 1e-9);
  }
  noise_pieces_ = plain.all_pieces;
  return step;
}

void FitRun::add_noise_sample(const CompiledStep& step) {
  const std::vector<double> samples = step.values(session_, kWeightOutput);
  const std::vector<double> scaled = step.values(session_, kScaledWeightOutput);
  const std::vector<double> norms = step.values(session_, kOwnNormOutput);
  const double reduced = step.values(session_, kReducedNormOutput).front();
  std::vector<PieceGradient> pieces;
  double weight = 0;
  for (std::size_t r = 0; r < samples.size(); ++r) {
    weight += scaled[r];
    if (samples[r] <= 0) continue;
    pieces.push_back({.samples = samples[r], .squared_norm = squared(norms[r] / scaled[r])});
  }
  if (const auto sample = noise_sample(pieces, squared(reduced / weight))) noise_.add(*sample);
}

// Whether the step may take memory that training does not have yet. On the CPU, a small part of
// what is left; on a GPU none, as libraries take theirs late.
bool FitRun::may_take_memory_for(const StepRequest& request) {
  if (noise_.chosen()) return true;
  const std::size_t needed =
      lockstep::plan_step(session_, impl_.recipe(), request).step.front().arena_bytes;
  const std::size_t taken = impl_.steps.arena_bytes();
  if (needed <= taken) return true;
  return session_.device().shares_host_memory() && needed - taken <= available_memory() / 8;
}

namespace {

// The rows of the first micro-batch of one replica: measuring must not take more memory than
// training does, and any rows will do.
Batch first_micro_batch(const Batch& batch, const StepRequest& plain) {
  if (plain.micro_batches.turns.empty()) return batch;
  const std::int64_t count = plain.micro_batches.turns.front().pieces.front().size();
  Batch rows = batch;
  for (Tensor& input : rows.inputs) input = input.rows(0, count);
  rows.labels = rows.labels.rows(0, count);
  if (rows.sample_weight.defined()) rows.sample_weight = rows.sample_weight.rows(0, count);
  return rows;
}

}  // namespace

void FitRun::measure_halves(const Batch& whole, const StepRequest& plain) {
  const Batch batch = first_micro_batch(whole, plain);
  if (batch.size() < 2) return;
  in_flight_.finish();
  const std::int64_t begin = now_ns();
  const StepRequest request = impl_.request_for(StepMode::Measure, batch, "fit");
  const bool compiles = !impl_.steps.holds(session_, request.signatures);
  const auto spent = [&] {
    if (compiles) noise_.compiled_sample(static_cast<double>(now_ns() - begin) * 1e-9);
  };
  if (compiles && !impl_.steps.holds(session_, plain.signatures, plain.micro_batches))
    plan_step(plain);
  CompiledStep* step = nullptr;
  try {
    if (!compiles || may_take_memory_for(request)) step = &impl_.step_for(request);
  } catch (const MemoryError&) {
    if (noise_.chosen()) throw;
  }
  spent();
  if (step == nullptr) return noise_.give_up();
  noise_pieces_ = plain.all_pieces;
  const std::int64_t run_ns = now_ns();
  try {
    run_step(*step, session_, batch);
    const auto value = [&](std::size_t place) { return step->values(session_, place).front(); };
    const double first = static_cast<double>(first_half(batch.size()));
    const double samples[] = {first, static_cast<double>(batch.size()) - first};
    std::vector<PieceGradient> pieces;
    double weight = 0;
    for (std::size_t half = 0; half < 2; ++half) {
      const double scaled = value(kHalfWeightOutput + half);
      weight += scaled;
      pieces.push_back({.samples = samples[half],
                        .squared_norm = squared(value(kHalfNormOutput + half) / scaled)});
    }
    const auto sample = noise_sample(pieces, squared(value(kWholeNormOutput) / weight));
    if (sample) noise_.add(*sample);
  } catch (const DataError& error) {
    fail_at_step(at_.epoch_step, error);
  }
  noise_.sample_took(static_cast<double>(now_ns() - run_ns) * 1e-9);
}

// Of the time since the step before: without planning, validation, saving and callbacks.
void FitRun::note_step_time(const StepInfo& info) {
  const double now =
      static_cast<double>(now_ns() - session_.phases().ns()) * 1e-9 - history_.callback_seconds;
  const NoiseSampler::Step kind = info.norms     ? NoiseSampler::Step::WithNorms
                                  : info.sampled ? NoiseSampler::Step::BesideSample
                                                 : NoiseSampler::Step::Plain;
  if (step_ended_s_) noise_.step_took(now - *step_ended_s_, kind);
  step_ended_s_ = now;
}

}  // namespace lockstep
