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

struct ControlEvent {
  ControlEventKind kind = ControlEventKind::Refused;
  int worker = -1;  // -1: none in particular
  std::string text = {};
};

}  // namespace lockstep
