// Saving and loading models: Model's functions, and ModelImpl's, which fit uses too.
#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/tensor/sliced_file.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {

void ModelImpl::make_slots() {
  Graph scratch;
  const std::vector<VariableRef> parameters = network->trainable_variables();
  if (parameters.empty()) return;
  std::vector<Value> stand_ins;
  for (const VariableRef& parameter : parameters) stand_ins.push_back(scratch.variable(parameter));
  options.optimizer.apply(scratch, parameters, stand_ins, scratch.scalar(1.0));
}

NamedVariables ModelImpl::checkpoint_variables(bool with_metrics) {
  NamedVariables variables = with_names(network->variables());
  const auto append = [&](const std::vector<VariableRef>& more, std::string_view prefix) {
    for (auto& entry : with_names(more, prefix)) variables.push_back(std::move(entry));
  };
  if (compiled) {
    make_slots();
    append(options.optimizer.variables(), kOptimizerPrefix);
    append(options.optimizer.loss_scale_variables(), kLossScalePrefix);
    if (with_metrics) append(metric_variables(), kMetricPrefix);
  }
  return variables;
}

TensorFile ModelImpl::gather(const NamedVariables& variables, const char* kind) {
  TensorFile contents;
  for (const auto& [name, variable] : variables) {
    contents.tensors[name] = session().get(variable);
  }
  contents.metadata = metadata_of(kind);
  return contents;
}

Metadata ModelImpl::metadata_of(const char* kind) {
  const World& world = session().world();
  return {{"format", "lockstep"},
          {"format_version", kCheckpointVersion},
          {"kind", kind},
          {"seed", std::to_string(options.seed)},
          {"step", std::to_string(session().step)},
          {"generation", std::to_string(world.generation())},
          {"workers", std::to_string(world.workers())}};
}

std::optional<Progress> ModelImpl::load(const std::filesystem::path& file, LoadPurpose purpose,
                                        const std::function<void(const Progress&)>& accept) {
  expect_built("load");
  const std::filesystem::path found = committed_file(session().world(), file);
  return apply(load_tensors(found), found, purpose, accept);
}

std::optional<Progress> ModelImpl::apply(const TensorFile& contents,
                                         const std::filesystem::path& file, LoadPurpose purpose,
                                         const std::function<void(const Progress&)>& accept) {
  expect_built("load");
  expect_checkpoint(contents, file);
  const std::optional<Progress> where = read_progress(contents, file);
  const std::int64_t step = read_integer(contents.metadata, "step", file).value_or(0);
  if (purpose == LoadPurpose::Resume) {
    require(where.has_value(),
            "[fit] {} was not written by fit, so there is no run to resume: use model.load",
            file.string());
    const std::string seed = std::to_string(options.seed);
    const auto saved = contents.metadata.find("seed");
    require(saved != contents.metadata.end() && saved->second == seed,
            "[fit] {} was trained with the seed {}, but the model is compiled with {}, so the run "
            "would continue differently: compile with that seed, or use model.load",
            file.string(), saved == contents.metadata.end() ? "(none)" : saved->second, seed);
  }
  // Only a run that resumes in mid-epoch needs the metrics; otherwise the model may have others.
  const bool in_epoch = purpose == LoadPurpose::Resume && where->mid_epoch();
  const NamedVariables variables = checkpoint_variables(in_epoch);
  expect_fit(contents, variables, file);
  if (accept) accept(*where);
  for (const auto& [name, variable] : variables) {
    const auto found = contents.tensors.find(name);
    if (found != contents.tensors.end()) session().set(variable, found->second);
  }
  read_errors(contents, file);
  session().step = step;
  return where;
}

Snapshot ModelImpl::take_snapshot(const SaveOptions& how, std::vector<VariableImage> spare) {
  const World& world = session().world();
  std::optional<Progress> where;
  if (!how.weights_only && progress) where = progress();
  const NamedVariables variables = how.weights_only
                                       ? with_names(network->variables())
                                       : checkpoint_variables(where && where->mid_epoch());
  Snapshot snapshot;
  snapshot.sliced = how.writers == Writers::All && world.workers() > 1;
  snapshot.contents.metadata = metadata_of(how.weights_only ? "weights" : "checkpoint");
  if (where) write_progress(*where, snapshot.contents);
  NamedVariables alike;  // variables that every worker has
  for (const auto& [name, variable] : variables) {
    const bool has_rows = variable->shape.rank() > 0 && variable->shape.elements() > 0;
    if (session().asks_others(*variable) || !has_rows) {
      snapshot.contents.tensors[name] = session().get(variable);
    } else {
      alike.emplace_back(name, variable);
    }
  }
  if (!how.weights_only) write_errors(snapshot.contents);
  if (!snapshot.sliced && !world.chief()) return snapshot;
  const std::vector<RowRange> rows = rows_of_writer(alike, snapshot.sliced ? world.worker() : 0,
                                                    snapshot.sliced ? world.workers() : 1);
  for (std::size_t i = 0; i < alike.size(); ++i) {
    if (rows[i].count == 0) continue;
    const std::size_t n = snapshot.images.size();
    VariableImage image;
    if (n < spare.size()) image = std::move(spare[n]);
    session().copy_rows(*alike[i].second, rows[i].begin, rows[i].count, image);
    snapshot.names.push_back(alike[i].first);
    snapshot.images.push_back(std::move(image));
  }
  return snapshot;
}

void ModelImpl::finish_writing() {
  if (last_snapshot == nullptr) return;  // on all workers alike
  const PhaseScope checkpoint(session().phases(), Phase::Checkpoint);
  const ActivityScope saving(session().world(), "saving");
  session().world().gather([this] {
    writer.finish();
    return std::string();
  });
}

void ModelImpl::save(const CheckpointPlace& place, const SaveOptions& how) {
  expect_built(how.weights_only ? "save_weights" : "save");
  const PhaseScope checkpoint(session().phases(), Phase::Checkpoint);
  World& world = session().world();
  const ActivityScope saving(world, "saving");
  finish_writing();
  std::vector<VariableImage> spare;
  if (last_snapshot != nullptr) spare = std::move(last_snapshot->images);
  last_snapshot = nullptr;
  const auto snapshot = std::make_shared<Snapshot>(take_snapshot(how, std::move(spare)));
  if (snapshot->sliced) world.open_background();
  const auto write = [&world, snapshot, place] { write_checkpoint(world, *snapshot, place); };
  if (how.asynchronous) {
    last_snapshot = snapshot;
    return writer.start(write);
  }
  world.gather([&] {
    write();
    return std::string();
  });
}

void Model::save_weights(const std::filesystem::path& file) const {
  impl_->save({.file = file}, {.weights_only = true});
}

void Model::load_weights(const std::filesystem::path& file, const LoadOptions& options) {
  impl_->expect_built("load_weights");
  const TensorFile contents = load_tensors(file);
  NamedVariables variables = with_names(this->variables());
  if (options.skip_mismatch) {
    std::erase_if(variables, [&](const auto& entry) {
      const auto found = contents.tensors.find(entry.first);
      return found == contents.tensors.end() || found->second.dtype() != entry.second->dtype ||
             found->second.shape() != entry.second->shape;
    });
  } else {
    expect_fit(contents, variables, file);
  }
  for (const auto& [name, variable] : variables) set_value(variable, contents.tensors.at(name));
}

void Model::save(const std::filesystem::path& file) const {
  impl_->save({.file = file}, {});
}

void Model::load(const std::filesystem::path& file) {
  impl_->load(file, LoadPurpose::Values);
}

}  // namespace lockstep
