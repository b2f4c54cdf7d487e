// ControlEvent: what the owner of a control server hears of it.
#pragma once

#include <string>

namespace lockstep {

enum class ControlEventKind {
  Refused,  // a connection or message was turned away
  Joined,   // a worker waits for the others
  Formed,   // a generation is complete
  Left,     // a worker said that it leaves
  Lost,     // a worker that was no member (yet) has ended or fallen silent
  Failed,   // the first failure of a generation
};

// Why a worker counts as failed.
enum class FailureCause {
  None,
  Ended,     // its connection has ended
  Silent,    // it has sent nothing for too long
  Stuck,     // it has made no progress for too long while others waited
  Reported,  // it has said so itself
};

// How often a job is tried again without a step beyond the last failure: what fails so often at the
// same place would fail again.
inline constexpr int kMostTries = 5;

struct ControlEvent {
  ControlEventKind kind = ControlEventKind::Refused;
  int worker = -1;  // -1: none in particular
  int seat = -1;    // the number that this worker asked for when it joined
  std::string text = {};
  FailureCause cause = FailureCause::None;  // of Failed
  // The next generation has begun: its place is open for a newcomer, or there is none any more.
  bool goes_on = false;
};

}  // namespace lockstep
