// All op functions.
#pragma once

#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/conv.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/error_feedback.h"
#include "lockstep/graph/ops/layout.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/graph/ops/norm.h"
#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/graph/ops/pool.h"
#include "lockstep/graph/ops/random.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/graph/ops/softmax.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"
