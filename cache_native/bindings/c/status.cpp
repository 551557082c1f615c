#include <cstdio>
#include <filesystem>
#include <new>

#include "handles.h"

namespace omnidraft::c {
namespace {

// Of fixed size: there may be no memory for a longer one.
thread_local char last_error[1024] = "";

omnidraft_status keep(omnidraft_status status, const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return status;
}

}  // namespace

omnidraft_status failed() noexcept {
  try {
    throw;
  } catch (const CallbackError& error) {
    return keep(OMNIDRAFT_CALLBACK, error.what());
  } catch (const CacheDamagedError& error) {
    return keep(OMNIDRAFT_DAMAGED, error.what());
  } catch (const CacheMismatchError& error) {
    return keep(OMNIDRAFT_MISMATCH, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return keep(OMNIDRAFT_FILE, error.what());
  } catch (const std::invalid_argument& error) {
    return keep(OMNIDRAFT_INVALID_ARGUMENT, error.what());
  } catch (const std::out_of_range& error) {
    return keep(OMNIDRAFT_INVALID_TOKEN, error.what());
  } catch (const std::domain_error& error) {
    return keep(OMNIDRAFT_NOT_NUMBERS, error.what());
  } catch (const std::length_error&) {
    return keep(OMNIDRAFT_NO_MEMORY, "no memory is that large");
  } catch (const std::logic_error& error) {
    return keep(OMNIDRAFT_WRONG_ORDER, error.what());
  } catch (const std::bad_alloc&) {
    return keep(OMNIDRAFT_NO_MEMORY, "there is no more memory");
  } catch (const std::exception& error) {
    return keep(OMNIDRAFT_FAILED, error.what());
  } catch (...) {
    return keep(OMNIDRAFT_FAILED, "something was thrown that is no std::exception");
  }
}

}  // namespace omnidraft::c

std::uint32_t omnidraft_version() { return OMNIDRAFT_API_VERSION; }

const char* omnidraft_last_error() { return omnidraft::c::last_error; }
