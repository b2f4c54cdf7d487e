#include "lockstep/nn/network.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/nn/layers.h"
#include "nn/running.h"

namespace lockstep {
namespace {

std::vector<std::string> variable_names(const std::vector<VariableRef>& variables) {
  std::vector<std::string> all;
  for (const VariableRef& variable : variables) all.push_back(variable->name);
  return all;
}

using Names = std::vector<std::string>;

std::shared_ptr<Network> two_dense() {
  return Network::sequential({Dense({.units = 4, .activation = "relu"}), Dense({.units = 2})});
}

TEST(Sequential, NamesItsLayersInOrder) {
  auto network = Network::sequential({Dense({.units = 4}), Dropout(),
                                      Dense({.units = 3, .name = "dense_1"}), Dense({.units = 2})});
  network->ensure_built(std::vector<ValueType>{{DType::F32, {1, 8}}});
  EXPECT_EQ(variable_names(network->variables()),
            (Names{"dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias", "dense_2/kernel",
                   "dense_2/bias"}));
  EXPECT_EQ(network->children()[1]->name(), "dropout");
}

TEST(Sequential, RefusesTwoLayersWithTheSameName) {
  EXPECT_ERROR(
      Network::sequential({Dense({.units = 4, .name = "a"}), Dense({.units = 4, .name = "a"})}),
      UsageError, "two layers are called a");
}

TEST(Sequential, GrowsUntilItIsBuilt) {
  auto network = Network::sequential({});
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 8}});
  EXPECT_ERROR(network->trace({&x, 1}, {}), UsageError, "has no layers");
  network->add(Dense({.units = 4}));
  network->add(Dense({.units = 3}));
  EXPECT_EQ(network->trace({&x, 1}, {}).shape(), (Shape{2, 3}));
  EXPECT_ERROR(network->add(Flatten()), UsageError, "no layer can be added");
}

TEST(Sequential, KnowsItsInputFromAnInputLayer) {
  auto network = Network::sequential({InputLayer({.shape = {8}}), Dense({.units = 4})});
  ASSERT_EQ(network->input_types().size(), 1u);
  EXPECT_EQ(network->input_types()[0], (ValueType{DType::F32, {1, 8}}));
  EXPECT_TRUE(two_dense()->input_types().empty());
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 9}});
  EXPECT_ERROR(network->trace({&x, 1}, {}), UsageError,
               "[input_layer] input_layer: expects f32(None, 8), got f32(2, 9)");
}

TEST(Sequential, InitialisesEachVariableByItsName) {
  const std::vector<ValueType> types = {{DType::F32, {1, 4}}};
  auto network = Network::sequential(
      {Dense({.units = 4, .use_bias = false}), Dense({.units = 4, .use_bias = false})});
  auto again = Network::sequential(
      {Dense({.units = 4, .use_bias = false}), Dense({.units = 4, .use_bias = false})});
  network->ensure_built(types);
  again->ensure_built(types);
  const auto value = [](const VariableRef& variable, std::uint64_t seed) {
    Tensor tensor(DType::F32, variable->shape);
    variable->initializer(tensor, seed);
    return tensor;
  };
  const auto a = network->variables(), b = again->variables();
  EXPECT_TRUE(value(a[0], 1).same_bits(value(b[0], 1)));
  EXPECT_FALSE(value(a[0], 1).same_bits(value(a[1], 1)));
  EXPECT_FALSE(value(a[0], 1).same_bits(value(a[0], 2)));
}

TEST(Functional, TakesTwoInputsAndSharesALayer) {
  const Symbol left = Input({.shape = {2}, .name = "left"}), right = Input({.shape = {2}});
  Dense shared({.units = 1, .kernel_initializer = Ones()});
  const Symbol a = shared(left), b = shared(right);
  auto network = Network::functional({left, right}, {Concatenate()({a, b}), b});
  EXPECT_EQ(network->input_count(), 2u);
  EXPECT_EQ(network->output_count(), 2u);

  Graph graph;
  const std::vector<Value> inputs = {graph.input("l", {DType::F32, {2, 2}}),
                                     graph.input("r", {DType::F32, {2, 2}})};
  const std::vector<Value> outputs = network->call_all(inputs, {});
  graph.output("joined", outputs[0]);
  graph.output("right", outputs[1]);
  EXPECT_EQ(network->variables().size(), 2u);
  State state(host(), 1);
  auto results = run_step(
      std::move(graph),
      {{"l", floats({1, 2, 3, 4}, {2, 2})}, {"r", floats({10, 20, 30, 40}, {2, 2})}}, state);
  expect_near(results["joined"], {3, 30, 7, 70});
  expect_near(results["right"], {30, 70});
}

TEST(Functional, NamesTheInputThatIsMissing) {
  const Symbol a = Input({.shape = {2}}), b = Input({.shape = {3}, .name = "extra"});
  const Symbol y = Concatenate()({a, b});
  EXPECT_ERROR(Network::functional({a}, {y}), UsageError,
               "depends on the Input extra (None, 3), which is not among the inputs");
}

TEST(Functional, ChecksItsInputs) {
  const Symbol image = Input({.shape = {4, 4, 1}, .name = "image"});
  auto network = Network::functional({image}, {Flatten()(image)}, "flat");
  Graph graph;
  const Value wrong = graph.input("x", {DType::F32, {2, 5, 4, 1}});
  EXPECT_ERROR(network->trace({&wrong, 1}, {}), UsageError,
               "input image expects f32(None, 4, 4, 1), got f32(2, 5, 4, 1)");
  const std::vector<Value> two = {wrong, wrong};
  EXPECT_ERROR(network->trace(two, {}), UsageError, "expects 1 input(s), got 2");
}

TEST(Functional, NamesLayersInTheOrderOfTheModelNotOfTheCalls) {
  const Symbol x = Input({.shape = {2}});
  Dense later({.units = 3}), earlier({.units = 2});
  const Symbol unused = later(x);
  auto network = Network::functional({x}, {Dense({.units = 1})(earlier(x))});
  EXPECT_EQ(earlier->path(), "dense");
  EXPECT_EQ(variable_names(network->variables()),
            (Names{"dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"}));
}

TEST(Nested, NetworksPrefixTheirVariablesWithTheirName) {
  auto encoder = two_dense();
  EXPECT_EQ(encoder->children()[0]->path(), "dense");
  const Symbol x = Input({.shape = {8}});
  const Symbol code = Layer(encoder)(x);
  auto network = Network::functional({x}, {Dense({.units = 8})(code)});
  EXPECT_EQ(variable_names(network->variables()),
            (Names{"sequential/dense/kernel", "sequential/dense/bias", "sequential/dense_1/kernel",
                   "sequential/dense_1/bias", "dense/kernel", "dense/bias"}));

  Graph graph;
  const Value input = graph.input("x", {DType::F32, {2, 8}});
  network->trace({&input, 1}, {});
  const auto has = [&](const std::string& name) {
    return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                       [&](const Node& node) { return node.name == name; });
  };
  EXPECT_TRUE(has("sequential/dense_1"));
  EXPECT_TRUE(has("dense"));
}

TEST(Nested, LayersKeepTheNameFromTheirFirstNetwork) {
  const Symbol x = Input({.shape = {8}});
  Dense first({.units = 4}), second({.units = 2});
  const Symbol hidden = first(x);
  auto whole = Network::functional({x}, {second(hidden)});
  auto features = Network::functional({x}, {hidden});
  EXPECT_EQ(second->path(), "dense_1");
  EXPECT_EQ(first->path(), "dense");
  auto reversed = Network::functional({x}, {Dense({.units = 3})(second(hidden))});
  EXPECT_EQ(second->path(), "dense_1");
  EXPECT_EQ(variable_names(reversed->variables()).back(), "dense_2/bias");
}

TEST(Nested, FreezingANetworkFreezesItsLayers) {
  auto inner = Network::sequential({Dense({.units = 2}), BatchNormalization()});
  auto outer = Network::sequential({Layer(inner), Dense({.units = 1})});
  outer->ensure_built(std::vector<ValueType>{{DType::F32, {1, 3}}});
  EXPECT_EQ(outer->trainable_variables().size(), 6u);
  inner->set_trainable(false);
  EXPECT_EQ(outer->trainable_variables().size(), 2u);
  EXPECT_FALSE(inner->children()[1]->trainable());
  EXPECT_EQ(outer->variables().size(), 8u);
}

// A user-defined layer that contains others.
class Residual final : public LayerBase {
 public:
  std::string kind() const override { return "Residual"; }
  void build(std::span<const ValueType> inputs) override {
    inner_ = {Dense({.units = 5}), Dense({.units = inputs[0].shape[-1]})};
  }
  Value call(std::span<const Value> inputs, const CallOptions& options) override {
    return Add()({inputs[0], inner_[1](inner_[0](inputs[0], options), options)});
  }
  std::vector<Layer> children() const override { return inner_; }

 private:
  std::vector<Layer> inner_;
};

TEST(Composed, UserDefinedLayersOwnTheirChildren) {
  auto network = Network::sequential({make_layer<Residual>(), make_layer<Residual>()});
  network->ensure_built(std::vector<ValueType>{{DType::F32, {1, 3}}});
  EXPECT_EQ(variable_names(network->variables()),
            (Names{"residual/dense/kernel", "residual/dense/bias", "residual/dense_1/kernel",
                   "residual/dense_1/bias", "residual_1/dense/kernel", "residual_1/dense/bias",
                   "residual_1/dense_1/kernel", "residual_1/dense_1/bias"}));

  const Symbol x = Input({.shape = {3}});
  auto functional = Network::functional({x}, {make_layer<Residual>()(make_layer<Residual>()(x))});
  EXPECT_EQ(variable_names(functional->variables()), variable_names(network->variables()));
}

TEST(Summary, PrintsKerasTable) {
  auto network = Network::sequential(
      {InputLayer({.shape = {28, 28, 1}}), Conv2D({.filters = 32, .kernel_size = 3}),
       BatchNormalization(), Flatten(), Dense({.units = 10})},
      "net");
  EXPECT_EQ(network->summary(),
            R"(Model: "net"
_____________________________________________________________________________
 Layer (type)                              Output Shape             Param #
=============================================================================
 conv2d (Conv2D)                           (None, 26, 26, 32)       320
 batch_normalization (BatchNormalization)  (None, 26, 26, 32)       128
 flatten (Flatten)                         (None, 21632)            0
 dense (Dense)                             (None, 10)               216,330
=============================================================================
Total params: 216,778 (846.79 KB)
Trainable params: 216,714 (846.54 KB)
Non-trainable params: 64 (256.00 B)
_____________________________________________________________________________
)");
}

TEST(Summary, ShowsConnectionsUnlessTheyAreAChain) {
  const Symbol x = Input({.shape = {4}, .name = "x"});
  const Symbol y = Dense({.units = 4})(x);
  auto network = Network::functional({x}, {Add()({x, y})});
  const std::string text = network->summary();
  EXPECT_NE(text.find("x (InputLayer)"), std::string::npos) << text;
  EXPECT_NE(text.find("Connected to"), std::string::npos) << text;
  EXPECT_NE(text.find("x, dense"), std::string::npos) << text;
  EXPECT_NE(text.find("Total params: 20 (80.00 B)"), std::string::npos) << text;
}

TEST(Summary, AsksForTheInputIfItIsUnknown) {
  auto network = two_dense();
  EXPECT_ERROR(network->summary(), UsageError, "start with an InputLayer");
  const std::vector<ValueType> types = {{DType::F32, {1, 8}}};
  EXPECT_NE(network->summary(types).find("Total params: 46"), std::string::npos);
}

TEST(Network, TakesAnInputAsItsFirstLayer) {
  const Symbol input = Input({28, 28});
  const auto network = Network::sequential({input, Flatten(), Dense(10)});
  ASSERT_EQ(network->input_types().size(), 1u);
  EXPECT_EQ(network->input_types()[0].shape, (Shape{1, 28, 28}));
  EXPECT_THROW(Network::sequential({Flatten()(input)}), UsageError);
}

TEST(Network, CastsToTheTypeOfItsInput) {
  const auto declared = Network::sequential({Input({4}), Activation("relu")});
  const auto free = Network::sequential({Activation("relu")});
  const auto integers = Network::sequential({Input({4}, {.dtype = DType::I32}), Embedding(5, 2)});
  Graph graph;
  for (const DType dtype : {DType::U8, DType::I64, DType::F64, DType::F32}) {
    const Value x = graph.input(std::string(name_of(dtype)), {dtype, {2, 4}});
    EXPECT_EQ(declared->trace(std::vector{x}, {}).dtype(), DType::F32) << name_of(dtype);
    if (!is_floating(dtype)) {
      EXPECT_EQ(integers->trace(std::vector{x}, {}).shape(), (Shape{2, 4, 2}));
    } else {
      EXPECT_EQ(free->trace(std::vector{x}, {}).dtype(), DType::F32);
      EXPECT_THROW(integers->trace(std::vector{x}, {}), UsageError);
    }
  }
}

}  // namespace
}  // namespace lockstep
