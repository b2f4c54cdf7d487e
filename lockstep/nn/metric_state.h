// The state of metrics: sums in f64, which stay accurate over long epochs.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/metric.h"

namespace lockstep {

// A metric whose variables are the named sums, "metrics/<metric>/<sum>".
class SumMetric : public MetricBase {
 public:
  struct Sum {
    std::string name;
    Shape shape = {};
  };
  SumMetric(std::string name, const std::vector<Sum>& sums);

  std::string name() const override { return name_; }
  std::vector<VariableRef> variables() const override { return variables_; }

 protected:
  // Adds a value of the sum's shape to sum i.
  void add_to(std::size_t i, Value amount) const;

 private:
  std::string name_;
  std::vector<VariableRef> variables_;
};

// The weighted mean of the values (N, …) that a function returns for (labels, predictions).
using MetricValues = std::function<Value(Value labels, Value predictions)>;
Metric mean_metric(std::string name, MetricValues values);

// x / y, or 0 if y is 0.
double ratio(double x, double y);

}  // namespace lockstep
