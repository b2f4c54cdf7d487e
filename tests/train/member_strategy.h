// A model of one worker that is a member of a job.
#pragma once

#include "lockstep/train/model_impl.h"
#include "lockstep/train/strategy_impl.h"
#include "train/problem.h"

namespace lockstep::testing {

// The membership must outlive it.
struct MemberStrategy : Strategy {
  explicit MemberStrategy(Membership& member)
      : Strategy({.world = std::make_shared<World>(WorldOptions{
                      .devices = {"cpu:0"},
                      .membership =
                          std::shared_ptr<Membership>(std::shared_ptr<Membership>(), &member)})}) {}
};

inline Sequential model_of_member(Membership& member) {
  Sequential model = make_model();
  CompileOptions options = with_adam();
  options.strategy = MemberStrategy(member);
  model.compile(options);
  model.build({kFeatures});
  return model;
}

}  // namespace lockstep::testing
