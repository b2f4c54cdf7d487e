// Complete calls of fit with metrics and callbacks: the history, and the weights at the end.
#include <fstream>
#include <sstream>

#include "conformance/driver/case.h"
#include "temporary_folder.h"

namespace conformance {
namespace {

double scheduled(const std::string& rule, std::int64_t epoch, double rate) {
  if (rule == "halve") return rate * 0.5;
  if (rule == "step") return epoch < 3 ? rate : rate * 0.1;
  return 0.1 / static_cast<double>(epoch + 1);  // "inverse"
}

ls::CallbackRef callback_of(const Json& given, const std::filesystem::path& folder) {
  const std::string kind = given.at("kind");
  if (kind == "EarlyStopping") {
    ls::EarlyStoppingOptions options;
    options.monitor = given.value("monitor", options.monitor);
    options.min_delta = given.value("min_delta", options.min_delta);
    options.patience = given.value("patience", options.patience);
    options.mode = given.value("mode", options.mode);
    if (given.contains("baseline")) options.baseline = given["baseline"].get<double>();
    options.restore_best_weights = given.value("restore_best_weights", false);
    options.start_from_epoch = given.value("start_from_epoch", options.start_from_epoch);
    return ls::EarlyStopping(options);
  }
  if (kind == "ReduceLROnPlateau") {
    ls::ReduceLROnPlateauOptions options;
    options.monitor = given.value("monitor", options.monitor);
    options.factor = given.value("factor", options.factor);
    options.patience = given.value("patience", options.patience);
    options.mode = given.value("mode", options.mode);
    options.min_delta = given.value("min_delta", options.min_delta);
    options.cooldown = given.value("cooldown", options.cooldown);
    options.min_lr = given.value("min_lr", options.min_lr);
    return ls::ReduceLROnPlateau(options);
  }
  if (kind == "LearningRateScheduler") {
    return ls::LearningRateScheduler(
        [rule = given.at("rule").get<std::string>()](std::int64_t epoch, double rate) {
          return scheduled(rule, epoch, rate);
        });
  }
  if (kind == "ModelCheckpoint") {
    return ls::ModelCheckpoint({.path = folder / "best.safetensors",
                                .monitor = given.value("monitor", "val_loss"),
                                .save_best_only = given.value("save_best_only", false),
                                .save_weights_only = true,
                                .mode = given.value("mode", "auto")});
  }
  if (kind == "CSVLogger") return ls::CSVLogger({.path = folder / "log.csv"});
  if (kind == "TerminateOnNaN") return ls::TerminateOnNaN();
  ls::fail<ls::UsageError>("[conformance] there is no callback {}", kind);
}

ls::Sequential model_of(const Case& c) {
  std::vector<ls::Layer> layers;
  for (const Json& row : c.options.at("layers")) layers.push_back(make_layer(row[0], row[1]));
  ls::Sequential model(layers);
  Case of_optimizer = c;
  of_optimizer.options = c.options.value("optimizer_options", Json::object());
  ls::CompileOptions options{
      .optimizer = make_optimizer(c.option<std::string>("optimizer", "sgd"), of_optimizer),
      .loss = make_loss(c.options.at("loss"), c.options.value("loss_options", Json::object()))};
  for (const std::string name : c.options.value("metrics", Json::array())) {
    options.metrics.push_back(ls::metric_by_name(name));
  }
  for (const std::string name : c.options.value("weighted_metrics", Json::array())) {
    options.weighted_metrics.push_back(ls::metric_by_name(name));
  }
  model.compile(options);
  const ls::Shape& x = c.input("x").shape();
  model.build(ls::Shape(std::vector<std::int64_t>(x.dims().begin() + 1, x.dims().end())));
  std::vector<ls::Tensor> weights;
  while (c.has("weight" + std::to_string(weights.size()))) {
    weights.push_back(c.input("weight" + std::to_string(weights.size())));
  }
  model.set_weights(weights);
  return model;
}

void add_series(Tensors& results, const std::string& name, const std::vector<double>& series) {
  results.emplace(name,
                  ls::Tensor::of(series, ls::Shape{static_cast<std::int64_t>(series.size())}));
}

void add_logs(Tensors& results, const std::string& prefix, const ls::Logs& logs) {
  for (const auto& [name, value] : logs.items()) add_series(results, prefix + name, {value});
}

ls::FitOptions fit_options(const Case& c, const std::filesystem::path& folder) {
  ls::FitOptions options;
  options.epochs = c.option("epochs", std::int64_t{3});
  options.initial_epoch = c.option("initial_epoch", std::int64_t{0});
  options.batch_size = c.option("batch_size", std::int64_t{32});
  options.validation_split = c.option("validation_split", 0.0);
  options.shuffle = false;
  options.verbose = 0;
  if (c.has("sample_weight")) options.sample_weight = c.input("sample_weight");
  const Json class_weight = c.options.value("class_weight", Json::object());
  for (const auto& [label, weight] : class_weight.items()) {
    options.class_weight.emplace(std::stoll(label), weight.get<double>());
  }
  if (c.has("validation_x")) {
    options.validation_data =
        ls::Dataset::from_tensor_slices({c.input("validation_x"), c.input("validation_y")})
            .batch(options.batch_size);
  }
  for (const Json& row : c.options.value("callbacks", Json::array())) {
    options.callbacks.push_back(callback_of(row, folder));
  }
  return options;
}

// The columns of a CSV file by name.
std::map<std::string, std::vector<double>> columns(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line, cell;
  std::vector<std::string> names;
  std::map<std::string, std::vector<double>> found;
  while (std::getline(stream, line)) {
    std::istringstream cells(line);
    std::vector<std::string> row;
    while (std::getline(cells, cell, ',')) row.push_back(cell);
    if (names.empty()) {
      names = row;
      continue;
    }
    for (std::size_t i = 0; i < row.size(); ++i) found[names.at(i)].push_back(std::stod(row[i]));
  }
  return found;
}

Tensors run_in(const Case& c, const std::filesystem::path& folder) {
  ls::Sequential model = model_of(c);
  const ls::Tensor &x = c.input("x"), &y = c.input("y");
  const auto wanted = c.options.at("results").get<std::vector<std::string>>();
  Tensors results;
  if (c.what == "fit") {
    const ls::History history = model.fit(x, y, fit_options(c, folder));
    for (const std::string& name : wanted) add_series(results, name, history.series(name));
    if (c.option("checkpoint", false)) model.load_weights(folder / "best.safetensors");
    if (c.option("csv", false)) {
      for (const auto& [name, series] : columns(folder / "log.csv")) {
        if (name == "epoch" || results.contains(name)) add_series(results, "csv_" + name, series);
      }
    }
    results.emplace("rate", ls::Tensor::scalar(model.learning_rate()));
  } else if (c.what == "on_batch") {
    ls::OnBatchOptions options;
    if (c.has("sample_weight")) options.sample_weight = c.input("sample_weight");
    add_logs(results, "test_", model.test_on_batch(x, y, options));
    for (int i = 0; i < 3; ++i) {
      add_logs(results, "train" + std::to_string(i) + "_", model.train_on_batch(x, y, options));
    }
    results.emplace("predictions", model.predict_on_batch(x));
  } else {
    ls::EvaluateOptions options;
    options.batch_size = c.option("batch_size", std::int64_t{32});
    options.verbose = 0;
    if (c.has("sample_weight")) options.sample_weight = c.input("sample_weight");
    add_logs(results, "", model.evaluate(x, y, options));
    results.emplace("predictions",
                    model.predict(x, {.verbose = 0, .batch_size = options.batch_size}));
  }
  const std::vector<ls::Tensor> weights = model.weights();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    results.emplace("weight" + std::to_string(i), weights[i]);
  }
  return results;
}

}  // namespace

// Inputs: x, y, weight0, …; optionally validation_x, validation_y and sample_weight. The option
// "results" names the series of the history to return.
Tensors run_fit(const Case& c) {
  const ls::TemporaryFolder folder;
  return run_in(c, folder.path());
}

}  // namespace conformance
