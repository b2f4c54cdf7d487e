// What rounding gradients to 16 bits has lost, in checkpoints and from one session to another. A
// checkpoint has every rank's errors, so that a run on as many ranks goes on with the same bits.
#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

// Whether the errors of a parameter are of a step that was applied. Others do not count: they may
// belong to gradients that were not finite.
bool counts(Session& session, const VariableRef& parameter) {
  const VariableRef applied = session.error_feedback().applied_for(parameter);
  return applied == nullptr || !session.has(*applied) || session.get(applied).item() != 0.0;
}

void set_to_count(Session& session, const VariableRef& parameter) {
  const VariableRef applied = session.error_feedback().applied_for(parameter);
  if (applied == nullptr || !session.has(*applied)) return;
  Tensor one(DType::F32, {});
  one.values<float>()[0] = 1.0F;
  session.set(applied, one);
}

// One tensor per rank, from their values one after another.
std::vector<Tensor> parts_of(const Tensor& rows, const Variable& variable) {
  std::vector<Tensor> parts;
  for (std::size_t at = 0; at < rows.bytes(); at += parts.back().bytes()) {
    parts.emplace_back(variable.dtype, variable.shape);
    std::memcpy(parts.back().raw(), rows.raw() + at, parts.back().bytes());
  }
  return parts;
}

Tensor sum_of(const std::vector<Tensor>& parts, const Variable& variable) {
  Tensor sum(variable.dtype, variable.shape);
  for (const Tensor& part : parts) {
    std::ranges::transform(sum.values<float>(), part.values<float>(), sum.values<float>().begin(),
                           std::plus<>());
  }
  return sum;
}

}  // namespace

bool ModelImpl::rounds_gradients() {
  return compiled && session().world().size() > 1 && memory_options(options).gradients.has_value();
}

void ModelImpl::write_errors(TensorFile& contents) {
  if (!rounds_gradients()) return;
  for (const VariableRef& parameter : network->trainable_variables()) {
    const VariableRef& error = session().error_feedback().error_of(parameter);
    if (error->shape.elements() == 0) continue;
    std::vector<Tensor>& parts = contents.rows[error->name];
    parts = session().get_parts(error);
    if (counts(session(), parameter)) continue;
    for (Tensor& part : parts) part = Tensor(part.dtype(), part.shape());
  }
}

void ModelImpl::read_errors(const TensorFile& contents, const std::filesystem::path& file) {
  if (!rounds_gradients()) return;
  reset_errors();
  for (const VariableRef& parameter : network->trainable_variables()) {
    const VariableRef& error = session().error_feedback().error_of(parameter);
    const auto found = contents.tensors.find(error->name);
    if (found == contents.tensors.end() || error->shape.elements() == 0) continue;
    const Tensor& rows = found->second;
    if (rows.dtype() != error->dtype || rows.elements() % error->shape.elements() != 0) {
      fail<DataError>("[load] {}: '{}' is {} {}, not {} {} of every replica", file.string(),
                      error->name, name_of(rows.dtype()), rows.shape(), name_of(error->dtype),
                      error->shape);
    }
    const std::vector<Tensor> parts = parts_of(rows, *error);
    if (std::ssize(parts) == session().world().size()) {
      session().set_parts(error, parts);
    } else {
      session().set(error, sum_of(parts, *error));
    }
  }
}

void ModelImpl::take_errors(Session& before) {
  if (!rounds_gradients()) return;
  for (const VariableRef& parameter : network->trainable_variables()) {
    const VariableRef& old = before.error_feedback().error_of(parameter);
    if (!before.has(*old) || !counts(before, parameter)) continue;
    session().set(session().error_feedback().error_of(parameter), before.get(old));
  }
}

void ModelImpl::reset_errors() {
  if (!rounds_gradients()) return;
  for (const VariableRef& parameter : network->trainable_variables()) {
    const VariableRef& error = session().error_feedback().error_of(parameter);
    if (session().has(*error)) session().set(error, Tensor(error->dtype, error->shape));
    set_to_count(session(), parameter);
  }
}

}  // namespace lockstep
