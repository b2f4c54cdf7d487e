// Metrics: the result after each of several batches.
#include "conformance/driver/case.h"

namespace conformance {

ls::Metric make_metric(const std::string& name, const Json& options) {
  ls::ThresholdOptions threshold;
  threshold.threshold = options.value("threshold", threshold.threshold);
  ls::TopKOptions top;
  top.k = options.value("k", top.k);
  if (name == "Accuracy") return ls::Accuracy();
  if (name == "BinaryAccuracy") return ls::BinaryAccuracy(threshold);
  if (name == "CategoricalAccuracy") return ls::CategoricalAccuracy();
  if (name == "SparseCategoricalAccuracy") return ls::SparseCategoricalAccuracy();
  if (name == "TopKCategoricalAccuracy") return ls::TopKCategoricalAccuracy(top);
  if (name == "SparseTopKCategoricalAccuracy") return ls::SparseTopKCategoricalAccuracy(top);
  if (name == "Precision") return ls::Precision(threshold);
  if (name == "Recall") return ls::Recall(threshold);
  if (name == "AUC") {
    ls::AUCOptions area;
    area.num_thresholds = options.value("num_thresholds", area.num_thresholds);
    area.from_logits = options.value("from_logits", area.from_logits);
    return ls::AUC(area);
  }
  if (name == "MeanSquaredError") return ls::MeanSquaredErrorMetric();
  if (name == "MeanAbsoluteError") return ls::MeanAbsoluteErrorMetric();
  ls::fail<ls::UsageError>("[conformance] there is no metric {}", name);
}

// Inputs: labels0, predictions0, sample_weight0 (optional), labels1, …. Result: one number per
// batch.
Tensors run_metric(const Case& c) {
  const ls::Metric metric = make_metric(c.what, c.options);
  const bool weighted = c.has("sample_weight0");
  const ls::OneDeviceStrategy strategy;
  ls::Function update = strategy.function([&](std::span<const ls::Value> values) {
    metric->update(values[0], values[1], weighted ? values[2] : ls::Value());
  });
  ls::Function read = strategy.function([&](const ls::ReplicaContext& context) {
    std::vector<ls::Value> state;
    for (const auto& variable : metric->variables()) {
      state.push_back(context.graph().variable(variable));
    }
    return state;
  });
  std::vector<double> results;
  for (std::string number = "0"; c.has("labels" + number);
       number = std::to_string(results.size())) {
    std::vector<ls::PerReplica> batch = {c.input("labels" + number),
                                         c.input("predictions" + number)};
    if (weighted) batch.emplace_back(c.input("sample_weight" + number));
    strategy.run_all(update, batch);
    std::vector<ls::Tensor> state;
    for (const ls::PerReplica& value : strategy.run_all(read, {})) state.push_back(value.at(0));
    results.push_back(metric->result(state));
  }
  const ls::Shape shape{static_cast<std::int64_t>(results.size())};
  return {{"result", ls::Tensor::of(results, shape)}};
}

}  // namespace conformance
