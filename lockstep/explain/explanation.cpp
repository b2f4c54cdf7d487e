#include "lockstep/explain/explanation.h"

namespace lockstep {

const char* name_of(Cause cause) {
  switch (cause) {
    case Cause::SmallPieces:
      return "small pieces";
    case Cause::Contention:
      return "contention";
    case Cause::Latency:
      return "communication latency";
    case Cause::Bandwidth:
      return "communication bandwidth";
    case Cause::Input:
      return "input";
    case Cause::Imbalance:
      return "imbalance";
    case Cause::Synchronisation:
      return "synchronisation";
    case Cause::Host:
      return "host";
    case Cause::Start:
      return "start";
    case Cause::Validation:
      return "validation";
    case Cause::Checkpoint:
      return "checkpoint";
    case Cause::Failures:
      return "failures";
  }
  return "";
}

}  // namespace lockstep
