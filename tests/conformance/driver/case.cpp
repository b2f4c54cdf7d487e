#include "conformance/driver/case.h"

namespace conformance {

const ls::Tensor& Case::input(const std::string& input_name) const {
  const auto found = inputs.find(input_name);
  ls::require(found != inputs.end(), "[conformance] {} has no input {}", name, input_name);
  return found->second;
}

std::vector<Case> read_cases(const std::filesystem::path& file) {
  const ls::TensorFile contents = ls::load_safetensors(file);
  std::vector<Case> cases;
  for (const Json& row : Json::parse(contents.metadata.at("cases"))) {
    const std::string number = std::to_string(cases.size());
    Case& made = cases.emplace_back();
    made.name = row.at("name");
    made.what = row.at("what");
    made.options = row.at("options");
    made.roundings = row.at("roundings");
    made.absolute = row.at("absolute");
    made.raises = row.at("raises");
    for (const std::string input : row.at("inputs")) {
      made.inputs.emplace(input, contents.tensors.at(number + "/in/" + input));
    }
  }
  for (const auto& [key, tensor] : contents.tensors) {
    const std::size_t slash = key.find('/');
    const std::string rest = key.substr(slash + 1);
    if (!rest.starts_with("out/")) continue;
    cases[std::stoul(key.substr(0, slash))].expected.emplace(rest.substr(4), tensor);
  }
  return cases;
}

void unknown(const Case& the_case) {
  ls::fail<ls::UsageError>("[conformance] {}: there is no {}", the_case.name, the_case.what);
}

Tensors run_case(const std::string& area, const Case& the_case) {
  static const std::map<std::string, Tensors (*)(const Case&)> areas = {
      {"optimizers", run_optimizer},
      {"schedules", run_schedule},
      {"initializers", run_initializer},
      {"losses", run_loss},
      {"logits", run_loss},
      {"metrics", run_metric},
      {"layers", run_layer},
      {"pooling", run_layer},
      {"images", run_image},
      {"colors", run_image},
      {"decoding", run_decoding},
      {"folders", run_folder},
      {"resnets", run_resnet},
      {"fit", run_fit},
  };
  const auto found = areas.find(area);
  ls::require(found != areas.end(), "[conformance] there is no area {}", area);
  return found->second(the_case);
}

ls::VariableRef variable_of(std::string name, const ls::Tensor& start) {
  auto variable = std::make_shared<ls::Variable>();
  variable->name = std::move(name);
  variable->dtype = start.dtype();
  variable->shape = start.shape();
  variable->initializer = [start](ls::Tensor& target, std::uint64_t) { target.copy_from(start); };
  return variable;
}

}  // namespace conformance
