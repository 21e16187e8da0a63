"""Images as uint8 tensors on the training device or as files, and batches of them."""

from .batches import Batches as Batches
from .batches import gather as gather
from .batches import normalize as normalize
from .cifar import CIFAR10 as CIFAR10
from .cifar import CIFAR100 as CIFAR100
from .cifar import read_cifar as read_cifar
from .dataset import PATHS as PATHS
from .dataset import AnyBatches as AnyBatches
from .dataset import AnySet as AnySet
from .dataset import Dataset as Dataset
from .dataset import batches_of as batches_of
from .dataset import is_available as is_available
from .dataset import list_datasets as list_datasets
from .dataset import load as load
from .embedded import read_mini as read_mini
from .errors import DataError as DataError
from .fetch import data_root as data_root
from .fetch import fetch_archive as fetch_archive
from .fetch import is_present as is_present
from .folder import read_folder as read_folder
from .images import ImageSet as ImageSet
from .stream import FileSet as FileSet
from .stream import StreamedBatches as StreamedBatches
from .stream import check_files as check_files
from .stream import default_workers as default_workers
from .stream import read_stream as read_stream
