// TF_CONFIG as TensorFlow reads it.
#include <gtest/gtest.h>

#include <vector>

#include "cluster/resolved.h"
#include "lockstep/cluster/resolvers.h"

namespace lockstep {
namespace {

std::string found(const std::string& config) {
  return found_by(TFConfigResolver({{"TF_CONFIG", config}}));
}

const std::string kTwo = R"({"cluster": {"worker": ["a:5000", "b:5001"]}, )";
const std::string kAll =
    R"({"cluster": {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1", "c:2"]}, )";

std::string task(const std::string& type, int index) {
  return R"("task": {"type": ")" + type + R"(", "index": )" + std::to_string(index) + "}}";
}

TEST(TfConfig, WithoutAChiefWorkerZeroIsTheChief) {
  EXPECT_EQ(found(kTwo + task("worker", 0)), "TF_CONFIG: chief 0 of 2 serves a:5000, local 0 of 1");
  EXPECT_EQ(found(kTwo + task("worker", 1)), "TF_CONFIG: worker 1 of 2 at a:5000, local 0 of 1");
}

TEST(TfConfig, TheChiefIsTheFirstWorker) {
  EXPECT_EQ(found(kAll + task("chief", 0)), "TF_CONFIG: chief 0 of 3 serves a:1, local 0 of 1");
  EXPECT_EQ(found(kAll + task("worker", 0)), "TF_CONFIG: worker 1 of 3 at a:1, local 0 of 2");
  EXPECT_EQ(found(kAll + task("worker", 1)), "TF_CONFIG: worker 2 of 3 at a:1, local 1 of 2");
}

TEST(TfConfig, ParameterServersKeepTheirIndex) {
  EXPECT_EQ(found(kAll + task("ps", 1)), "TF_CONFIG: ps 1 of 3 at a:1");
  EXPECT_EQ(found(R"({"cluster": {"chief": ["a:1"], "ps": ["c:1"]}, )" + task("chief", 0)),
            "TF_CONFIG: chief 0 of 1 serves a:1, local 0 of 1");
}

TEST(TfConfig, AnEvaluatorStandsOutside) {
  EXPECT_EQ(found(kAll + task("evaluator", 0)), "TF_CONFIG: evaluator 0 of 3");
  const std::string inside = R"({"cluster": {"worker": ["a:1"], "evaluator": ["e:1"]}, )";
  EXPECT_EQ(found(inside + task("evaluator", 0)), "TF_CONFIG: evaluator 0 of 1");
  EXPECT_EQ(found(inside + task("worker", 0)), "TF_CONFIG: chief 0 of 1, local 0 of 1");
  expect_all_in(found(inside + task("evaluator", 1)), {"error", "evaluator 1", "from 0 to 0"});
}

TEST(TfConfig, MasterIsAnOldNameOfChief) {
  const std::string old = R"({"cluster": {"master": ["a:1"], "worker": ["b:1"]}, )";
  EXPECT_EQ(found(old + task("master", 0)), "TF_CONFIG: chief 0 of 2 serves a:1, local 0 of 1");
  EXPECT_EQ(found(old + task("worker", 0)), "TF_CONFIG: worker 1 of 2 at a:1, local 0 of 1");
}

TEST(TfConfig, OneWorkerHasNoControlPlane) {
  EXPECT_EQ(found(R"({"cluster": {"worker": ["a:1"]}, )" + task("worker", 0)),
            "TF_CONFIG: chief 0 of 1, local 0 of 1");
}

TEST(TfConfig, WithoutAClusterNothingIsSaid) {
  EXPECT_EQ(found("{}"), "nothing");
  EXPECT_EQ(found(R"({"cluster": {}, "task": {"type": "worker", "index": 0}})"), "nothing");
  EXPECT_EQ(found(R"({"task": {"type": "worker", "index": 0}})"), "nothing");
  EXPECT_EQ(found(""), "nothing");
}

TEST(TfConfig, WhatTensorFlowIgnoresIsIgnored) {
  EXPECT_EQ(found(R"({"environment": "cloud", "rpc_layer": "grpc", "job": {"x": 1}, "cluster":
                      {"worker": ["[::1]:1", "[::1]:2"]},
                      "task": {"type": "worker", "index": "1", "trial": "3"}})"),
            "TF_CONFIG: worker 1 of 2 at [::1]:1, local 1 of 2");
}

struct Mistake {
  std::string config;
  std::vector<std::string> said;
};

TEST(TfConfig, MistakesAreNamedWithWhatToDo) {
  const std::vector<Mistake> mistakes = {
      {"{", {"'{'", "not JSON"}},
      {"[1]", {"'[1]'", "not an object"}},
      {std::string(1000, '['), {"nests deeper than 64"}},
      {kTwo + R"("x": 1})", {"no \"task\"", R"("task": {"type": "worker", "index": 0})"}},
      {kTwo + R"("task": {}})", {"no \"task\"", "add"}},
      {kTwo + R"("task": {"index": 0}})", {"no \"type\""}},
      {kTwo + R"("task": {"type": "worker"}})", {"no \"index\""}},
      {kTwo + R"("task": {"type": "worker", "index": "x"}})", {"\"index\"", "x"}},
      {kTwo + R"("task": {"type": "worker", "index": 0.5}})", {"0.5"}},
      {kTwo + R"("task": {"type": "worker", "index": 18446744073709551615}})", {"1844674407"}},
      {kTwo + task("worker", -1), {"-1", "from 0"}},
      {kTwo + task("worker", 2), {"worker 2", "2 of them", "from 0 to 1"}},
      {kTwo + task("chief", 0), {"chief 0", "no \"chief\"", "add its address"}},
      {kTwo + task("boss", 0), {"'boss'", "chief, worker, ps and evaluator"}},
      {R"({"cluster": {"worker": ["a:1", "a:1"]}, )" + task("worker", 0), {"a:1", "its own"}},
      {R"({"cluster": {"chief": ["a:1"], "worker": ["a:1"]}, )" + task("worker", 0),
       {"a:1", "chief", "worker"}},
      {R"({"cluster": {"chief": ["a:1", "b:1"]}, )" + task("chief", 0), {"2 chiefs", "a:1, b:1"}},
      {R"({"cluster": {"chief": ["a:1"], "master": ["b:1"]}, )" + task("chief", 0),
       {"mean the same"}},
      {R"({"cluster": {"ps": ["a:1"]}, )" + task("ps", 0), {"neither"}},
      {R"({"cluster": {"worker": "a:1"}, )" + task("worker", 0), {"'\"a:1\"'", "not a list"}},
      {R"({"cluster": {"worker": [1]}, )" + task("worker", 0), {"'1'", "host:port"}},
      {R"({"cluster": {"worker": ["a"]}, )" + task("worker", 0), {"\"worker\" 0", "'a'", "port"}},
      {R"({"cluster": {"worker": ["a:1", "b:x"]}, )" + task("worker", 0), {"\"worker\" 1", "'x'"}},
      {R"({"cluster": {"tpu": ["a:1"]}, )" + task("worker", 0), {"'tpu'"}},
      {R"({"cluster": ["a:1"], )" + task("worker", 0), {"\"cluster\""}},
  };
  for (const Mistake& mistake : mistakes) {
    const std::string text = found(mistake.config);
    EXPECT_TRUE(text.starts_with("error: TF_CONFIG")) << mistake.config << "\n" << text;
    expect_all_in(text, mistake.said);
  }
}

}  // namespace
}  // namespace lockstep
