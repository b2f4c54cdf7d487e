// A case of the comparison with other frameworks, on Lockstep's side.
#pragma once

#include <lockstep/lockstep.h>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace conformance {

namespace ls = lockstep;
using Json = nlohmann::json;
using Tensors = std::map<std::string, ls::Tensor>;

struct Case {
  std::string name;
  std::string what;  // "adam", "conv2d"
  Json options;
  Tensors inputs;
  // How the results are compared: see case.py.
  double roundings = 0;
  double absolute = 0;
  bool raises = false;
  Tensors expected;  // only in files of golden/

  // Throws UsageError, naming the case, if there is no such input.
  const ls::Tensor& input(const std::string& name) const;
  bool has(const std::string& name) const { return inputs.contains(name); }
  // The value of an option, or `otherwise` if the case does not set it.
  template <class T>
  T option(const char* name, T otherwise) const {
    const auto found = options.find(name);
    return found == options.end() || found->is_null() ? otherwise : found->get<T>();
  }
};

std::vector<Case> read_cases(const std::filesystem::path& file);

// The results of a case; exceptions of Lockstep pass through.
Tensors run_case(const std::string& area, const Case& the_case);
// Throws UsageError, naming the case, for a `what` that its area does not know.
[[noreturn]] void unknown(const Case& the_case);

// One per area.
Tensors run_optimizer(const Case& the_case);
Tensors run_schedule(const Case& the_case);
Tensors run_initializer(const Case& the_case);
Tensors run_loss(const Case& the_case);
Tensors run_metric(const Case& the_case);
Tensors run_layer(const Case& the_case);
Tensors run_image(const Case& the_case);
Tensors run_decoding(const Case& the_case);
Tensors run_folder(const Case& the_case);
Tensors run_resnet(const Case& the_case);
Tensors run_fit(const Case& the_case);

// Builders that several areas share.
ls::Schedule make_schedule(const Json& options);
ls::Optimizer make_optimizer(const std::string& name, const Case& the_case);
ls::Loss make_loss(const std::string& name, const Json& options);
ls::Metric make_metric(const std::string& name, const Json& options);
ls::Layer make_layer(const std::string& kind, const Json& options);

// A variable with the initial value `start`.
ls::VariableRef variable_of(std::string name, const ls::Tensor& start);

}  // namespace conformance
